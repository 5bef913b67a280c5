#include "paceline/training/tensor/collectives.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

// Whether a rank has blocks of several ranks, so that elements are ordered by dim 0 first.
bool has_blocks(Op op) {
  return traits_of(op).input > Extent::kCount || traits_of(op).output > Extent::kCount;
}

// Returns the hash of a call's tensor, which ranks compare; if ranks may have different numbers of
// rows, the hash of one row.
std::uint32_t compared_shape(Op op, const at::Tensor& tensor) {
  if (!has_blocks(op)) return shape_of(tensor);
  auto sizes = tensor.sizes().vec();
  if (has_counts(op) && !sizes.empty()) sizes[0] = 1;
  return shape_of(sizes);
}

// Returns options for a call on these dense tensors: the call keeps them alive, and on a device it
// is ordered with the current stream.
CallOptions options_for(const ProcessGroup& group, const std::shared_ptr<GivenTensors>& tensors) {
  CallOptions options{.keep_alive = tensors};
  if (tensors->all.empty()) return options;
  const c10::Device device = tensors->all.front().device();
  for (const at::Tensor& tensor : tensors->all) {
    check(tensor.device() == device, "{}: a tensor on {} and one on {} in one call", group.self(),
          device.str(), tensor.device().str());
  }
  if (device.is_cpu()) return options;
  require_backend_for(device, parse_backend_choice(group.backend()),
                      fmt::format("{}: a tensor", group.self()));
  options.order = order_in_current_stream(device);
  return options;
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

// The call in the engine's form, with all data to which it points.
struct Prepared {
  Call call;
  CallOptions options;
  std::vector<std::size_t> counts, receive_counts;
  std::vector<ConstBuffer> inputs;
  std::vector<Buffer> outputs;

  Prepared(const ProcessGroup& group, const TensorCall& asked) {
    call = {.op = asked.op,
            .reduce_op = asked.reduce_op,
            .divisor = asked.divisor,
            .root = asked.root,
            .peer = asked.peer,
            .tag = asked.tag};
    const auto tensors = std::make_shared<GivenTensors>();
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
    options = options_for(group, tensors);
    options.timeout = asked.timeout;
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

 private:
  // Sets the shape that ranks compare.
  void set_shape(const ProcessGroup& group, const TensorCall& asked) {
    const bool by_output = traits_of(asked.op).has(kOnlyRootGives) || asked.op == Op::kReceive;
    if (!asked.lists) {
      require_one_layout(group, asked.op, asked.input, asked.output);
      const at::Tensor& compared = by_output ? asked.output : asked.input;
      if (compared.defined()) call.shape = compared_shape(asked.op, compared);
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

  static void require_one_layout(const ProcessGroup& group, Op op, const at::Tensor& input,
                                 const at::Tensor& output) {
    if (!keeps_order(op) || !input.defined() || !output.defined()) return;
    if (output.is_same(input) || shape_of(input) == shape_of(output)) return;
    fail(ErrorCode::kInvalid,
         "{}: {}: input is {}, output {}; give it tensors of the same sizes and strides",
         group.self(), name_of(op), layouts_of({input}), layouts_of({output}));
  }
};

// The same call on tensors that the engine can use, which are copies where necessary; copy_back()
// then fills the original outputs.
class Fitted {
 public:
  Fitted(const ProcessGroup& group, const TensorCall& call) : group_(group), call_(call) {
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
  }
  const TensorCall& call() const { return call_; }
  void copy_back() const {
    const at::NoGradGuard no_grad;
    for (const auto& [original, copy] : copies_) original.copy_(copy);
  }

 private:
  at::Tensor fitting_output(const at::Tensor& tensor) {
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
  at::Tensor fitting_input(const at::Tensor& tensor, const at::Tensor& output) const {
    if (!tensor.defined()) return tensor;
    const at::NoGradGuard no_grad;
    const bool has_other_order = keeps_order(call_.op) && output.defined() &&
                                 tensor.sizes() == output.sizes() &&
                                 tensor.strides() != output.strides();
    if (has_other_order) return at::empty_like(output).copy_(tensor);
    return fits(call_.op, tensor) ? tensor : tensor.contiguous();
  }

  const ProcessGroup& group_;
  TensorCall call_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

at::Tensor with_first_dim(const at::Tensor& like, std::int64_t first) {
  auto sizes = like.sizes().vec();
  if (sizes.empty()) sizes.push_back(1);
  sizes[0] = first;
  return at::empty(sizes, like.options());
}

std::int64_t first_dim(const at::Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 1; }

// Returns dim 0 of `input` divided by the number of ranks. Error(kInvalid) if that is not a whole
// number.
std::int64_t part_size(ProcessGroup& group, const at::Tensor& input, const char* what) {
  check(input.dim() > 0 && input.size(0) % group.world_size() == 0,
        "{}: {}: dim 0 of the input ({}) does not divide by {} ranks", group.self(), what,
        input.dim() > 0 ? input.size(0) : 0, group.world_size());
  return input.size(0) / group.world_size();
}

std::int64_t rows_of(ProcessGroup& group, const std::vector<std::int64_t>& rows, const char* what) {
  check(static_cast<int>(rows.size()) == group.world_size(),
        "{}: {}: a list of {} numbers of rows in a group of {} ranks", group.self(), what,
        rows.size(), group.world_size());
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

void run(GroupRef group, const TensorCall& call) {
  const Fitted fitted(group, call);
  const Prepared prepared(group, fitted.call());
  group->run(prepared.call, prepared.options);
  fitted.copy_back();
}

WorkPtr start(GroupRef group, const TensorCall& call) {
  const Prepared prepared(group, call);
  return group->start(prepared.call, prepared.options);
}

// ---- in place

void all_reduce(GroupRef group, const at::Tensor& tensor, ReduceOp op,
                const CollectiveOptions& options) {
  run(group, {.op = Op::kAllReduce,
              .input = tensor,
              .output = tensor,
              .reduce_op = op,
              .timeout = options.timeout});
}
WorkPtr all_reduce_async(GroupRef group, const at::Tensor& tensor, ReduceOp op,
                         const CollectiveOptions& options) {
  return start(group, {.op = Op::kAllReduce,
                       .input = tensor,
                       .output = tensor,
                       .reduce_op = op,
                       .timeout = options.timeout});
}

void broadcast(GroupRef group, const at::Tensor& tensor, int root,
               const CollectiveOptions& options) {
  run(group, {.op = Op::kBroadcast,
              .input = tensor,
              .output = tensor,
              .root = root,
              .timeout = options.timeout});
}
WorkPtr broadcast_async(GroupRef group, const at::Tensor& tensor, int root,
                        const CollectiveOptions& options) {
  return start(group, {.op = Op::kBroadcast,
                       .input = tensor,
                       .output = tensor,
                       .root = root,
                       .timeout = options.timeout});
}

void reduce(GroupRef group, const at::Tensor& tensor, int root, ReduceOp op,
            const CollectiveOptions& options) {
  run(group, {.op = Op::kReduce,
              .input = tensor,
              .output = tensor,
              .reduce_op = op,
              .root = root,
              .timeout = options.timeout});
}
WorkPtr reduce_async(GroupRef group, const at::Tensor& tensor, int root, ReduceOp op,
                     const CollectiveOptions& options) {
  return start(group, {.op = Op::kReduce,
                       .input = tensor,
                       .output = tensor,
                       .reduce_op = op,
                       .root = root,
                       .timeout = options.timeout});
}

// ---- gathering and scattering

at::Tensor all_gather_into_tensor(GroupRef group, const at::Tensor& tensor,
                                  const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(tensor, first_dim(tensor) * group->world_size());
  run(group, {.op = Op::kAllGather, .input = tensor, .output = output, .timeout = options.timeout});
  return output;
}
WorkPtr all_gather_into_tensor_async(GroupRef group, const at::Tensor& output,
                                     const at::Tensor& input, const CollectiveOptions& options) {
  return start(
      group, {.op = Op::kAllGather, .input = input, .output = output, .timeout = options.timeout});
}

std::vector<at::Tensor> all_gather(GroupRef group, const at::Tensor& tensor,
                                   const CollectiveOptions& options) {
  return all_gather_into_tensor(group, tensor.unsqueeze(0), options).unbind(0);
}

at::Tensor all_gather_v(GroupRef group, const at::Tensor& tensor,
                        const std::vector<std::int64_t>& rows, const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(tensor, rows_of(group, rows, "all_gather_v"));
  run(group, {.op = Op::kAllGatherV,
              .input = tensor,
              .output = output,
              .counts = rows,
              .timeout = options.timeout});
  return output;
}
WorkPtr all_gather_v_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& rows,
                           const CollectiveOptions& options) {
  return start(group, {.op = Op::kAllGatherV,
                       .input = input,
                       .output = output,
                       .counts = rows,
                       .timeout = options.timeout});
}

std::vector<at::Tensor> gather(GroupRef group, const at::Tensor& tensor, int root,
                               const CollectiveOptions& options) {
  at::Tensor output;
  if (group->rank() == root) output = with_first_dim(tensor.unsqueeze(0), group->world_size());
  run(group, {.op = Op::kGather,
              .input = tensor,
              .output = output,
              .root = root,
              .timeout = options.timeout});
  return output.defined() ? output.unbind(0) : std::vector<at::Tensor>();
}
WorkPtr gather_async(GroupRef group, const at::Tensor& output, const at::Tensor& input, int root,
                     const CollectiveOptions& options) {
  return start(group, {.op = Op::kGather,
                       .input = input,
                       .output = output,
                       .root = root,
                       .timeout = options.timeout});
}

void scatter(GroupRef group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
             int root, const CollectiveOptions& options) {
  at::Tensor stacked;
  if (group->rank() == root) {
    check(static_cast<int>(inputs.size()) == group->world_size(),
          "{}: scatter: root gives {} tensors to {} ranks", group->self(), inputs.size(),
          group->world_size());
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.sizes() == output.sizes()) continue;
      fail(ErrorCode::kInvalid, "{}: scatter: root gives a tensor {} where each rank gets {}",
           group->self(), shapes_of({input}), shapes_of({output}));
    }
    stacked = at::stack(inputs);
  }
  run(group, {.op = Op::kScatter,
              .input = stacked,
              .output = output,
              .root = root,
              .timeout = options.timeout});
}
WorkPtr scatter_async(GroupRef group, const at::Tensor& output, const at::Tensor& input, int root,
                      const CollectiveOptions& options) {
  return start(group, {.op = Op::kScatter,
                       .input = input,
                       .output = output,
                       .root = root,
                       .timeout = options.timeout});
}

at::Tensor reduce_scatter(GroupRef group, const at::Tensor& input, ReduceOp op,
                          const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(input, part_size(group, input, "reduce_scatter"));
  run(group, {.op = Op::kReduceScatter,
              .input = input,
              .output = output,
              .reduce_op = op,
              .timeout = options.timeout});
  return output;
}
WorkPtr reduce_scatter_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                             ReduceOp op, const CollectiveOptions& options) {
  return start(group, {.op = Op::kReduceScatter,
                       .input = input,
                       .output = output,
                       .reduce_op = op,
                       .timeout = options.timeout});
}

at::Tensor reduce_scatter_v(GroupRef group, const at::Tensor& input,
                            const std::vector<std::int64_t>& rows, ReduceOp op,
                            const CollectiveOptions& options) {
  rows_of(group, rows, "reduce_scatter_v");
  at::Tensor output = with_first_dim(input, rows[static_cast<std::size_t>(group->rank())]);
  run(group, {.op = Op::kReduceScatterV,
              .input = input,
              .output = output,
              .reduce_op = op,
              .counts = rows,
              .timeout = options.timeout});
  return output;
}
WorkPtr reduce_scatter_v_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                               const std::vector<std::int64_t>& rows, ReduceOp op,
                               const CollectiveOptions& options) {
  return start(group, {.op = Op::kReduceScatterV,
                       .input = input,
                       .output = output,
                       .reduce_op = op,
                       .counts = rows,
                       .timeout = options.timeout});
}

at::Tensor all_to_all_single(GroupRef group, const at::Tensor& input,
                             const CollectiveOptions& options) {
  part_size(group, input, "all_to_all_single");
  at::Tensor output = with_first_dim(input, input.size(0));
  run(group, {.op = Op::kAllToAll, .input = input, .output = output, .timeout = options.timeout});
  return output;
}
WorkPtr all_to_all_single_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                                const CollectiveOptions& options) {
  return start(group,
               {.op = Op::kAllToAll, .input = input, .output = output, .timeout = options.timeout});
}

at::Tensor all_to_all_v(GroupRef group, const at::Tensor& input,
                        const std::vector<std::int64_t>& send_rows,
                        const std::vector<std::int64_t>& receive_rows,
                        const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(input, rows_of(group, receive_rows, "all_to_all_v"));
  run(group, {.op = Op::kAllToAllV,
              .input = input,
              .output = output,
              .counts = send_rows,
              .receive_counts = receive_rows,
              .timeout = options.timeout});
  return output;
}
WorkPtr all_to_all_v_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& send_rows,
                           const std::vector<std::int64_t>& receive_rows,
                           const CollectiveOptions& options) {
  return start(group, {.op = Op::kAllToAllV,
                       .input = input,
                       .output = output,
                       .counts = send_rows,
                       .receive_counts = receive_rows,
                       .timeout = options.timeout});
}

// ---- many at once

void all_reduce_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors, ReduceOp op,
                          const CollectiveOptions& options) {
  run(group, {.op = Op::kAllReduce,
              .reduce_op = op,
              .lists = TensorLists{{}, tensors},
              .timeout = options.timeout});
}
WorkPtr all_reduce_coalesced_async(GroupRef group, const std::vector<at::Tensor>& tensors,
                                   ReduceOp op, const CollectiveOptions& options) {
  return start(group, {.op = Op::kAllReduce,
                       .reduce_op = op,
                       .lists = TensorLists{{}, tensors},
                       .timeout = options.timeout});
}

void broadcast_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors, int root,
                         const CollectiveOptions& options) {
  run(group, {.op = Op::kBroadcast,
              .root = root,
              .lists = TensorLists{{}, tensors},
              .timeout = options.timeout});
}
WorkPtr broadcast_coalesced_async(GroupRef group, const std::vector<at::Tensor>& tensors, int root,
                                  const CollectiveOptions& options) {
  return start(group, {.op = Op::kBroadcast,
                       .root = root,
                       .lists = TensorLists{{}, tensors},
                       .timeout = options.timeout});
}

void all_gather_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                          const std::vector<at::Tensor>& inputs, const CollectiveOptions& options) {
  run(group,
      {.op = Op::kAllGather, .lists = TensorLists{inputs, outputs}, .timeout = options.timeout});
}
WorkPtr all_gather_coalesced_async(GroupRef group, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& inputs,
                                   const CollectiveOptions& options) {
  return start(
      group,
      {.op = Op::kAllGather, .lists = TensorLists{inputs, outputs}, .timeout = options.timeout});
}

void reduce_scatter_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs, ReduceOp op,
                              const CollectiveOptions& options) {
  run(group, {.op = Op::kReduceScatter,
              .reduce_op = op,
              .lists = TensorLists{inputs, outputs},
              .timeout = options.timeout});
}
WorkPtr reduce_scatter_coalesced_async(GroupRef group, const std::vector<at::Tensor>& outputs,
                                       const std::vector<at::Tensor>& inputs, ReduceOp op,
                                       const CollectiveOptions& options) {
  return start(group, {.op = Op::kReduceScatter,
                       .reduce_op = op,
                       .lists = TensorLists{inputs, outputs},
                       .timeout = options.timeout});
}

// ---- messages

void send(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
          const CollectiveOptions& options) {
  run(group,
      {.op = Op::kSend, .input = tensor, .peer = peer, .tag = tag, .timeout = options.timeout});
}
WorkPtr send_async(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                   const CollectiveOptions& options) {
  return start(
      group,
      {.op = Op::kSend, .input = tensor, .peer = peer, .tag = tag, .timeout = options.timeout});
}

int recv(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
         const CollectiveOptions& options) {
  const Fitted fitted(
      group,
      {.op = Op::kReceive, .output = tensor, .peer = peer, .tag = tag, .timeout = options.timeout});
  const Prepared prepared(group, fitted.call());
  const int source = group->recv(prepared.call, prepared.options);
  fitted.copy_back();
  return source;
}
WorkPtr recv_async(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                   const CollectiveOptions& options) {
  return start(
      group,
      {.op = Op::kReceive, .output = tensor, .peer = peer, .tag = tag, .timeout = options.timeout});
}

std::vector<WorkPtr> batch_isend_irecv(GroupRef group, const std::vector<TensorCall>& messages) {
  std::deque<Prepared> prepared;  // a deque, because each element points to its own members
  std::vector<Call> calls;
  const auto keep_alive = std::make_shared<std::vector<std::shared_ptr<void>>>();
  for (const TensorCall& message : messages) {
    prepared.emplace_back(group, message);
    calls.push_back(prepared.back().call);
    keep_alive->push_back(prepared.back().options.keep_alive);
  }
  return group->batch_isend_irecv(calls, {.keep_alive = keep_alive});
}

void send_with_shape(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                     const CollectiveOptions& options) {
  send_with_shape_async(group, tensor.contiguous(), peer, tag, options)->wait();
}
WorkPtr send_with_shape_async(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                              const CollectiveOptions& options) {
  check(tensor.is_contiguous(),
        "{}: send_with_shape: the tensor is not contiguous; give it tensor.contiguous()",
        group->self());
  return start(group, {.op = Op::kSend,
                       .input = tensor,
                       .peer = peer,
                       .tag = tag,
                       .with_shape = true,
                       .timeout = options.timeout});
}

namespace {

struct NewTensor : MessagePlace {
  std::byte* make(Dtype dtype, std::span<const std::int64_t> sizes) override {
    const at::IntArrayRef dimensions(sizes.data(), sizes.size());
    tensor = at::empty(dimensions, at::TensorOptions(to_scalar_type(dtype)));
    return static_cast<std::byte*>(tensor.data_ptr());
  }
  at::Tensor tensor;
};

}  // namespace

ReceivedTensor recv_with_shape(GroupRef group, int peer, std::uint32_t tag,
                               const CollectiveOptions& options) {
  return recv_with_shape_async(group, peer, tag, options).wait();
}
PendingTensor recv_with_shape_async(GroupRef group, int peer, std::uint32_t tag,
                                    const CollectiveOptions& options) {
  auto place = std::make_shared<NewTensor>();
  auto work = group->start({.op = Op::kReceive, .peer = peer, .tag = tag, .place = place},
                           {.timeout = options.timeout});
  const at::Tensor* const tensor = &place->tensor;
  return {std::move(work), std::shared_ptr<const at::Tensor>(std::move(place), tensor)};
}

at::Tensor empty_symmetric(GroupRef group, at::IntArrayRef sizes, at::ScalarType type) {
  std::size_t count = 1;
  for (const auto size : sizes) {
    check(size >= 0, "empty_symmetric: a size is negative");
    count *= static_cast<std::size_t>(size);
  }
  if (count == 0) return at::zeros(sizes, at::TensorOptions(type));
  const SymmetricBuffer buffer = group->allocate_symmetric(count * size_of(to_dtype(type)));
  return at::from_blob(
      buffer.data(), sizes, [buffer](void*) {}, at::TensorOptions(type));
}

}  // namespace paceline
