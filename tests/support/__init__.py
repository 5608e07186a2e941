"""What tests of several packages share."""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
"""nbformat comes to import it, which takes more than a second: for addresses that no notebook has."""
