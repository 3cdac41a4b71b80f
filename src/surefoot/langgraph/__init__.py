"""The shell that knows LangGraph: the saver, the wrappers, the serialiser.

No other room imports ``langgraph`` or ``langchain_core``.
"""

from langgraph import runtime as _runtime

if not hasattr(_runtime, "RunControl"):
    # Without it a run cannot be told from a look, and nothing would be fenced.
    raise ImportError("surefoot needs langgraph 1.2.0 or newer; run pip install -U langgraph")
