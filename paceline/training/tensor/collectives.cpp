#include "paceline/training/tensor/collectives.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/prepared_call.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

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

namespace {

// Starts a message from or to copies of device memory. A send waits until the device has made the
// values.
WorkPtr start_on_copies(GroupRef group, const PreparedCall& prepared) {
  const auto& copies = prepared.copies;
  CallOptions options = prepared.options;
  options.order = nullptr;
  if (prepared.call.op == Op::kSend) {
    copies->fetch(Deadline::after(options.timeout.value_or(group->timeout())));
    return group->start(prepared.call, options);
  }
  const WorkPtr received = group->start(prepared.call, options);
  const auto work = std::make_shared<Work>([received] { return received->description(); }, copies);
  received->on_complete([work, copies, message = std::weak_ptr(received)](const Error* error) {
    if (error != nullptr) return work->complete(std::make_exception_ptr(*error));
    try {
      work->queue(copies->deliver());
      TensorCopies::keep(copies);
    } catch (...) {
      return work->complete(std::current_exception());
    }
    const WorkPtr ended = message.lock();
    work->complete(nullptr, ended ? ended->source_rank() : -1);
  });
  return work;
}

WorkPtr start(GroupRef group, const PreparedCall& prepared) {
  if (prepared.copies && traits_of(prepared.call.op).has(kIsMessage))
    return start_on_copies(group, prepared);
  return group->start(prepared.call, prepared.options);
}

}  // namespace

void run(GroupRef group, const TensorCall& call) {
  const FittedCall fitted(group, call);
  const PreparedCall prepared(group, fitted.call());
  if (prepared.copies) {
    start(group, prepared)->wait();
  } else {
    group->run(prepared.call, prepared.options);
  }
  fitted.copy_back();
}

WorkPtr start(GroupRef group, const TensorCall& call) {
  return start(group, PreparedCall(group, call));
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
  const FittedCall fitted(
      group,
      {.op = Op::kReceive, .output = tensor, .peer = peer, .tag = tag, .timeout = options.timeout});
  const PreparedCall prepared(group, fitted.call());
  int source = -1;
  if (prepared.copies) {
    const WorkPtr work = start(group, prepared);
    work->wait();
    source = work->source_rank();
  } else {
    source = group->recv(prepared.call, prepared.options);
  }
  fitted.copy_back();
  return source;
}
WorkPtr recv_async(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                   const CollectiveOptions& options) {
  return start(
      group,
      {.op = Op::kReceive, .output = tensor, .peer = peer, .tag = tag, .timeout = options.timeout});
}

namespace {

// Starts the receives first, so that arriving messages have a destination.
std::vector<WorkPtr> batch_on_copies(GroupRef group, const std::vector<TensorCall>& messages) {
  std::vector<WorkPtr> works(messages.size());
  for (const Op op : {Op::kReceive, Op::kSend}) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].op == op) works[i] = start(group, messages[i]);
    }
  }
  return works;
}

}  // namespace

std::vector<WorkPtr> batch_isend_irecv(GroupRef group, const std::vector<TensorCall>& messages) {
  std::deque<PreparedCall> prepared;  // a deque, because each element points to its own members
  std::vector<Call> calls;
  const auto keep_alive = std::make_shared<std::vector<std::shared_ptr<void>>>();
  for (const TensorCall& message : messages) {
    prepared.emplace_back(group, message);
    if (prepared.back().copies) return batch_on_copies(group, messages);
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
