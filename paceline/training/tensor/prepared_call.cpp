#include "paceline/training/tensor/prepared_call.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

// Whether a rank has blocks of several ranks, so that elements are ordered by dim 0 first.
bool has_blocks(Op op) {
  return traits_of(op).input > Extent::kCount || traits_of(op).output > Extent::kCount;
}

// Returns a hash of the tensor's sizes and strides, which the ranks compare. For operations with
// blocks it covers only the sizes; if ranks may pass different numbers of rows, dim 0 counts as 1.
std::uint32_t compared_shape(Op op, const at::Tensor& tensor) {
  if (!has_blocks(op)) return shape_of(tensor);
  auto sizes = tensor.sizes().vec();
  if (has_counts(op) && !sizes.empty()) sizes[0] = 1;
  return shape_of(sizes);
}

// Returns the device of the call's tensors; the CPU if there are no tensors. Error(kInvalid) if
// they are on several devices.
c10::Device device_of(const ProcessGroup& group, const TensorCall& call) {
  const at::Tensor* first = nullptr;
  const auto visit = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (first == nullptr) first = &tensor;
    check(tensor.device() == first->device(),
          "{}: {}: a tensor on {} and one on {} in one call; move them to one device", group.self(),
          name_of(call.op), first->device().str(), tensor.device().str());
  };
  visit(call.input);
  visit(call.output);
  if (call.lists) {
    for (const at::Tensor& input : call.lists->inputs) visit(input);
    for (const at::Tensor& output : call.lists->outputs) visit(output);
  }
  return first == nullptr ? c10::Device(c10::kCPU) : first->device();
}

bool fits(Op op, const at::Tensor& tensor) {
  return has_blocks(op) ? tensor.is_contiguous() : is_dense(tensor);
}

// Converts rows of `tensor` along dim 0 to elements.
std::vector<std::size_t> to_elements(const std::vector<std::int64_t>& rows,
                                     const at::Tensor& tensor) {
  std::int64_t row = 1;
  for (std::int64_t dim = 1; dim < tensor.dim(); ++dim) row *= tensor.size(dim);
  std::vector<std::size_t> elements;
  for (const std::int64_t count : rows) {
    check(count >= 0, "a rank has {} rows", count);
    elements.push_back(static_cast<std::size_t>(count * row));
  }
  return elements;
}

// Whether an operation keeps the order of elements, so that input and output must have the same
// layout.
bool keeps_order(Op op) { return !has_blocks(op) && !traits_of(op).has(kIsMessage); }

// Whether an operation changes its output on this rank. A broadcast does not change the root's
// tensor, which autograd may have saved.
bool writes_output(Op op, bool is_root) {
  return is_root ? op != Op::kBroadcast : !traits_of(op).has(kOnlyRootGets);
}

void require_one_layout(const ProcessGroup& group, Op op, const at::Tensor& input,
                        const at::Tensor& output) {
  if (!keeps_order(op) || !input.defined() || !output.defined()) return;
  if (output.is_same(input) || shape_of(input) == shape_of(output)) return;
  fail(ErrorCode::kInvalid,
       "{}: {}: input is {}, output {}; give it tensors of the same sizes and strides",
       group.self(), name_of(op), layouts_of({input}), layouts_of({output}));
}

// Returns the call on copies in host memory. Tensors that the operation cannot use stay as they
// are, and are refused later.
TensorCall call_on_copies(const ProcessGroup& group, const TensorCall& asked,
                          TensorCopies& copies) {
  const bool is_root = group.rank() == asked.root;
  const bool reads = is_root || !traits_of(asked.op).has(kOnlyRootGives);
  const bool writes = writes_output(asked.op, is_root);
  const auto read = [&](at::Tensor& tensor) {
    if (tensor.defined() && fits(asked.op, tensor)) tensor = copies.copy_of(tensor, reads, false);
  };
  const auto write = [&](at::Tensor& tensor) {
    if (!tensor.defined() || !fits(asked.op, tensor)) return;
    if (writes) count_write(tensor);
    tensor = copies.copy_of(tensor, false, writes);
  };
  TensorCall on_host = asked;
  read(on_host.input);
  write(on_host.output);
  if (on_host.lists) {
    const bool in_place = on_host.lists->inputs.empty();
    for (at::Tensor& input : on_host.lists->inputs) read(input);
    for (at::Tensor& output : on_host.lists->outputs) {
      if (in_place && fits(asked.op, output)) copies.copy_of(output, reads, false);
      write(output);
    }
  }
  copies.begin();
  return on_host;
}

}  // namespace

PreparedCall::PreparedCall(const ProcessGroup& group, const TensorCall& asked) try {
  const c10::Device device = device_of(group, asked);
  if (!device.is_cpu()) require_device(device, fmt::format("{}: a tensor", group.self()));
  if (device.is_cpu() || !parse_backend_choice(group.backend()).cuda.empty()) {
    prepare(group, asked);
    if (!device.is_cpu()) options.order = order_in_current_stream(device);
    return;
  }
  copies = std::make_shared<TensorCopies>(device,
                                          fmt::format("{}: {}", group.self(), name_of(asked.op)));
  prepare(group, call_on_copies(group, asked, *copies));
  options.order = copies;
} catch (const Error& error) {
  engine(group).note_refusal(error);
  throw;
}

void PreparedCall::prepare(const ProcessGroup& group, const TensorCall& asked) {
  call = {.op = asked.op,
          .reduce_op = asked.reduce_op,
          .divisor = asked.divisor,
          .root = asked.root,
          .peer = asked.peer,
          .tag = asked.tag};
  const auto tensors = std::make_shared<GivenTensors>();
  tensors->subject = asked.subject;
  const auto view = [&](const at::Tensor& tensor) {
    check(fits(asked.op, tensor), "{}: {}: a tensor is not {}; give it tensor.contiguous()",
          group.self(), name_of(asked.op), has_blocks(asked.op) ? "contiguous" : "dense");
    tensors->all.push_back(tensor);
    return dense_view(tensor);
  };
  if (asked.input.defined()) call.input = view(asked.input);
  if (asked.with_shape) call.sizes = {asked.input.sizes().data(), asked.input.sizes().size()};
  const bool in_place = asked.output.is_same(asked.input);
  if (asked.output.defined())
    call.output = in_place ? dense_view(asked.output) : view(asked.output);
  const bool is_written = writes_output(asked.op, group.rank() == asked.root);
  if (asked.output.defined() && is_written) count_write(asked.output);
  if (asked.lists) {
    for (const at::Tensor& input : asked.lists->inputs) inputs.push_back(view(input));
    for (const at::Tensor& output : asked.lists->outputs) outputs.push_back(view(output));
    if (is_written) {
      for (const at::Tensor& output : asked.lists->outputs) count_write(output);
    }
    call.lists = BufferLists{inputs, outputs};
  }
  if (has_counts(asked.op)) {
    counts = to_elements(asked.counts, asked.input);
    receive_counts = to_elements(asked.receive_counts, asked.input);
    call.counts = counts;
    call.receive_counts = receive_counts;
  }
  check(!tensors->all.empty() || asked.lists || asked.op == Op::kBarrier,
        "{}: {}: a tensor that is to be communicated is undefined", group.self(),
        name_of(asked.op));
  set_shape(group, asked);
  call.shapes = tensors.get();
  options.keep_alive = tensors;
  options.timeout = asked.timeout;
  if (asked.keep_alive) {
    using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
    options.keep_alive = std::make_shared<Both>(asked.keep_alive, tensors);
  }
}

void PreparedCall::set_shape(const ProcessGroup& group, const TensorCall& asked) {
  const bool by_output = traits_of(asked.op).has(kOnlyRootGives) || asked.op == Op::kReceive;
  if (!asked.lists) {
    require_one_layout(group, asked.op, asked.input, asked.output);
    const at::Tensor& compared = by_output ? asked.output : asked.input;
    if (compared.defined()) call.shape = compared_shape(asked.op, compared);
    std::vector<std::uint32_t> words(asked.subject.begin(), asked.subject.end());
    words.push_back(call.shape);
    if (!asked.subject.empty()) call.shape = shape_of_all(words);
    return;
  }
  const auto &given = asked.lists->inputs, &wanted = asked.lists->outputs;
  for (std::size_t i = 0; i < std::min(given.size(), wanted.size()); ++i)
    require_one_layout(group, asked.op, given[i], wanted[i]);
  std::vector<std::uint32_t> shapes;
  for (const at::Tensor& tensor : by_output || given.empty() ? wanted : given)
    shapes.push_back(compared_shape(asked.op, tensor));
  call.shape = shape_of_all(shapes);
}

FittedCall::FittedCall(const ProcessGroup& group, const TensorCall& call) try
    : group_(group), call_(call) {
  const bool in_place = call.output.defined() && call.output.is_same(call.input);
  if (call.output.defined()) call_.output = fitting_output(call.output);
  if (in_place) {
    call_.input = call_.output;
  } else if (call.input.defined()) {
    call_.input = fitting_input(call.input, call_.output);
  }
  if (!call_.lists) return;
  auto &inputs = call_.lists->inputs, &outputs = call_.lists->outputs;
  for (at::Tensor& output : outputs) output = fitting_output(output);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    inputs[i] = fitting_input(inputs[i], i < outputs.size() ? outputs[i] : at::Tensor());
} catch (const Error& error) {
  engine(group).note_refusal(error);
  throw;
}

void FittedCall::copy_back() const {
  const at::NoGradGuard no_grad;
  for (const auto& [original, copy] : copies_) original.copy_(copy);
}

at::Tensor FittedCall::fitting_output(const at::Tensor& tensor) {
  if (!tensor.defined() || fits(call_.op, tensor)) return tensor;
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    fail(ErrorCode::kInvalid,
         "{}: {}: elements of a tensor that is to be written share memory, as those of an "
         "expanded one do ({}); give it tensor.contiguous()",
         group_.self(), name_of(call_.op), layouts_of({tensor}));
  }
  const at::NoGradGuard no_grad;
  copies_.emplace_back(tensor, tensor.contiguous());
  return copies_.back().second;
}

at::Tensor FittedCall::fitting_input(const at::Tensor& tensor, const at::Tensor& output) const {
  if (!tensor.defined()) return tensor;
  const at::NoGradGuard no_grad;
  const bool has_other_order = keeps_order(call_.op) && output.defined() &&
                               tensor.sizes() == output.sizes() &&
                               tensor.strides() != output.strides();
  if (has_other_order) return at::empty_like(output).copy_(tensor);
  return fits(call_.op, tensor) ? tensor : tensor.contiguous();
}

}  // namespace paceline
