"""Does a training compute the same again? Its first steps are run twice; and why not, by holding one thing still at a time."""
