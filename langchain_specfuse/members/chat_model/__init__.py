"""LangChain chat models as members."""
