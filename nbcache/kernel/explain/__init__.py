"""Why a graph missed: values in, values out."""
