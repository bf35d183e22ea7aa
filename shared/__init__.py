"""What every process of maskstream speaks: the wire protocol, rows, guides, parameters, errors. Imports no engine and no torch."""
