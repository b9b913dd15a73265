"""The method, pure: no torch, no LangChain, no threads, no clock of its own. Begin with
:mod:`.rounds`."""
