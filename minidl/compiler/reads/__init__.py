"""What a step reads other than the Tensors that its ops are given: noted as it runs, compared before a replay."""
