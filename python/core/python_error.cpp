#include "python/core/python_error.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace paceline::python {

namespace nb = nanobind;

namespace {

PyObject* type = nullptr;  // owner: the module, which Python never unloads

nb::object deadline_of(const Error& error) {
  if (!error.deadline()) return nb::none();
  return nb::float_(std::chrono::duration<double>(*error.deadline()).count());
}

}  // namespace

nb::object to_python(const Error& error) {
  nb::object made = nb::handle(type)(nb::str(error.what()));
  made.attr("code") = to_string(error.code());
  made.attr("operation") = error.operation();
  made.attr("group") = error.group();
  made.attr("ranks") = error.ranks();
  made.attr("deadline") = deadline_of(error);
  return made;
}

void add_error(nb::module_& module) {
  type = PyErr_NewExceptionWithDoc(
      "paceline.Error",
      "An error of Paceline. Its text says what happened, on which rank, in which operation, and\n"
      "what to do. The attributes hold the same facts: code, operation, group, ranks, deadline.",
      PyExc_RuntimeError, nullptr);
  if (type == nullptr) throw nb::python_error();
  module.attr("Error") = nb::handle(type);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void* /*payload*/) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetObject(type, to_python(error).ptr());
    }
  });
}

}  // namespace paceline::python
