"""The shell that knows LangGraph: the saver, the wrappers, the serialiser.

No other room imports ``langgraph`` or ``langchain_core``.
"""
