#pragma once

// The Python exception `paceline.Error`, which carries the facts of an Error of the engine:
// attributes `code` ("timeout", ...), `operation`, `group`, `ranks` (of the world) and `deadline`
// (seconds, or None).
//
// Thread safety: every function needs the GIL.

#include <nanobind/nanobind.h>

#include "paceline/engine/core/error.h"

namespace paceline::python {

// Adds the exception to the module, and makes every binding translate Error to it.
void add_error(nanobind::module_& module);
// The Python exception of an error, as an object.
nanobind::object to_python(const Error& error);

}  // namespace paceline::python
