"""Operations that layers of a net are made of; `minidl.nn.layers` holds their parameters."""
