// The module paceline._core: groups of the engine for Python, without any tensor library.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/telemetry/crash_reporter.h"

#include "python/core/group.h"
#include "python/core/interrupts.h"
#include "python/core/python_error.h"

namespace paceline::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Buffers = std::vector<std::pair<std::uintptr_t, std::size_t>>;
using Counts = std::vector<std::size_t>;

template <class Last>
nb::dict numbers_by_name(Last last) {  // the values of an enum up to `last`
  nb::dict names;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    const std::string_view name = name_of(static_cast<Last>(i));
    names[nb::str(name.data(), name.size())] = i;
  }
  return names;
}

void add_operation(nb::module_& module) {
  nb::class_<Operation>(module, "Operation", "An operation under way, or a completed one.")
      .def("wait", &Operation::wait, "timeout_ms"_a = 0)
      .def("is_completed", &Operation::is_completed)
      .def("error", &Operation::error)
      .def("source_rank", &Operation::source_rank)
      .def("then", &Operation::then, "function"_a);
}

void add_group(nb::module_& module) {
  nb::class_<Group>(module, "Group", "A group of ranks that communicate with each other.")
      .def(nb::init<nb::object, const std::string&, const std::vector<int>&, int, int, std::int64_t,
                    const std::string&>(),
           "store"_a, "name"_a, "world_ranks"_a, "rank"_a, "world_size"_a, "timeout_ms"_a = 0,
           "transport"_a = "")
      .def(nb::init<std::int64_t>(), "timeout_ms"_a = 0)
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def_prop_ro("name", &Group::name)
      .def_prop_ro("transport", &Group::transport)
      .def_prop_ro("world_ranks", &Group::world_ranks)
      .def_prop_ro("neighbours", &Group::neighbours)
      .def_prop_ro("is_closed", &Group::is_closed)
      .def("explain", &Group::explain, "op"_a, "dtype"_a, "count"_a)
      .def(
          "run",
          [](Group& group, int op, int dtype, std::uintptr_t input, std::size_t input_count,
             std::uintptr_t output, std::size_t output_count, int reduce_op, int root,
             std::int64_t timeout_ms, const Counts& counts, const Counts& receive_counts,
             const Buffers& inputs, const Buffers& outputs) {
            group.run({op, dtype, input, input_count, output, output_count, reduce_op, root,
                       timeout_ms, counts, receive_counts, inputs, outputs});
          },
          "op"_a, "dtype"_a, "input"_a, "input_count"_a, "output"_a, "output_count"_a,
          "reduce_op"_a = 0, "root"_a = 0, "timeout_ms"_a = 0, "counts"_a = Counts(),
          "receive_counts"_a = Counts(), "inputs"_a = Buffers(), "outputs"_a = Buffers())
      .def(
          "start",
          [](Group& group, nb::object keep, int op, int dtype, std::uintptr_t input,
             std::size_t input_count, std::uintptr_t output, std::size_t output_count,
             int reduce_op, int root, std::int64_t timeout_ms, const Counts& counts,
             const Counts& receive_counts, const Buffers& inputs, const Buffers& outputs) {
            return group.start({op, dtype, input, input_count, output, output_count, reduce_op,
                                root, timeout_ms, counts, receive_counts, inputs, outputs},
                               std::move(keep));
          },
          "keep"_a.none(), "op"_a, "dtype"_a, "input"_a, "input_count"_a, "output"_a,
          "output_count"_a, "reduce_op"_a = 0, "root"_a = 0, "timeout_ms"_a = 0,
          "counts"_a = Counts(), "receive_counts"_a = Counts(), "inputs"_a = Buffers(),
          "outputs"_a = Buffers())
      .def("send", &Group::send, "data"_a, "count"_a, "dtype"_a, "peer"_a, "tag"_a, "timeout_ms"_a,
           "keep"_a.none())
      .def("receive", &Group::receive, "data"_a, "count"_a, "dtype"_a, "peer"_a, "tag"_a,
           "timeout_ms"_a, "keep"_a.none())
      .def("abort", &Group::abort, "reason"_a)
      .def("close", &Group::close);
}

}  // namespace
}  // namespace paceline::python

NB_MODULE(_core, module) {
  using namespace paceline;
  using namespace paceline::python;
  module.doc() = "The engine of Paceline: groups and collectives on memory.";
  nanobind::set_leak_warnings(false);  // PyTorch keeps some groups until the process ends
  do_not_report_uncaught_errors();     // Python reports uncaught errors itself
  remember_main_thread();
  add_error(module);
  add_operation(module);
  add_group(module);
  module.attr("OPS") = numbers_by_name(Op::kVisit);
  module.attr("DTYPES") = numbers_by_name(Dtype::kBool);
  module.attr("REDUCE_OPS") = numbers_by_name(ReduceOp::kBitXor);
  module.attr("VERSION") = PACELINE_VERSION;
  module.def("next_completion", &next_completion);
  module.def("num_waiting_for_completions", &num_waiting_for_completions);
  module.def("close_completions", &close_completions);
}
