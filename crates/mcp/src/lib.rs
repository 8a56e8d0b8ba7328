//! Tools over MCP.
