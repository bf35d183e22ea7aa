"""Grammar service: holds compiled grammars and matchers, streams packed rows to GPU workers. CPU only; imports no torch."""
