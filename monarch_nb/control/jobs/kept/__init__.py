"""Jobs that outlive a command of a terminal: `monarch-nb apply | exec | shell | kill | context`."""
