"""What operations and backends share: how an op is made, the primitives' table, geometry, kernels' texts."""
