"""Operations that end in a loss; `minidl.nn.losses` has them as Modules."""
