"""What a step reads beside the Tensors that its ops are given: noted as it runs, compared before a replay."""
