"""The LangChain side: one chat model whose answers several members write together."""
