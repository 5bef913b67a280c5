#include "paceline/training/tensor/collectives.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/training/tensor/prepared_call.h"
#include "paceline/training/tensor/tensor_call.h"
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
        "{}: {}: the list of rows has {} entries, but the group has {} ranks", group.self(), what,
        rows.size(), group.world_size());
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

// Starts the call if `async_op` is set; otherwise carries it out before it returns, as
// torch.distributed does.
WorkPtr carry_out(GroupRef group, TensorCall call, const CollectiveOptions& options) {
  call.timeout = options.timeout;
  call.keep_alive = options.keep_alive;
  if (options.async_op) return start(group, call);
  run(group, call);
  return Work::completed();
}

// Carries out a call whose result is returned as a tensor.
void carry_out_now(GroupRef group, TensorCall call, const CollectiveOptions& options) {
  check(!options.async_op,
        "{}: {} with async_op cannot return its output: pass a tensor to fill, before the input",
        group->self(), name_of(call.op));
  carry_out(group, std::move(call), options);
}

// Starts a message from or to copies of device memory. A send first waits until the device has
// computed the values.
WorkPtr start_on_copies(GroupRef group, const PreparedCall& prepared) {
  const auto& copies = prepared.copies;
  CallOptions options = prepared.options;
  options.order = nullptr;
  if (prepared.call.op == Op::kSend) {
    copies->fetch(Deadline::after(options.timeout.value_or(group->timeout())));
    return engine(*group).start(prepared.call, options);
  }
  const WorkPtr received = engine(*group).start(prepared.call, options);
  const auto work = std::make_shared<Work>([received] { return received->description(); }, copies);
  received->on_complete([work, copies, message = std::weak_ptr(received)](const Error* error) {
    if (error != nullptr) return work->complete(std::make_exception_ptr(*error));
    const WorkPtr ended = message.lock();
    const int source = ended ? ended->source_rank() : -1;
    try {
      work->queue(copies->deliver(), false, source);
      TensorCopies::keep(copies);
    } catch (...) {
      return work->complete(std::current_exception());
    }
    work->complete(nullptr, source);
  });
  return work;
}

WorkPtr start(GroupRef group, const PreparedCall& prepared) {
  if (prepared.copies && traits_of(prepared.call.op).has(kIsMessage))
    return start_on_copies(group, prepared);
  return engine(*group).start(prepared.call, prepared.options);
}

}  // namespace

void run(GroupRef group, const TensorCall& call) {
  const FittedCall fitted(group, call);
  const PreparedCall prepared(group, fitted.call());
  if (prepared.copies) {
    start(group, prepared)->wait();
  } else {
    engine(*group).run(prepared.call, prepared.options);
  }
  fitted.copy_back();
}

WorkPtr start(GroupRef group, const TensorCall& call) {
  return start(group, PreparedCall(group, call));
}

// ---- in place

WorkPtr all_reduce(GroupRef group, const at::Tensor& tensor, ReduceOp op,
                   const CollectiveOptions& options) {
  return carry_out(
      group, {.op = Op::kAllReduce, .input = tensor, .output = tensor, .reduce_op = op}, options);
}

WorkPtr broadcast(GroupRef group, const at::Tensor& tensor, int root,
                  const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kBroadcast, .input = tensor, .output = tensor, .root = root},
                   options);
}

WorkPtr reduce(GroupRef group, const at::Tensor& tensor, int root, ReduceOp op,
               const CollectiveOptions& options) {
  return carry_out(
      group, {.op = Op::kReduce, .input = tensor, .output = tensor, .reduce_op = op, .root = root},
      options);
}

// ---- gathering and scattering

WorkPtr all_gather_into_tensor(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                               const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kAllGather, .input = input, .output = output}, options);
}
at::Tensor all_gather_into_tensor(GroupRef group, const at::Tensor& input,
                                  const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(input, first_dim(input) * group->world_size());
  carry_out_now(group, {.op = Op::kAllGather, .input = input, .output = output}, options);
  return output;
}

std::vector<at::Tensor> all_gather(GroupRef group, const at::Tensor& tensor,
                                   const CollectiveOptions& options) {
  return all_gather_into_tensor(group, tensor.unsqueeze(0), options).unbind(0);
}

WorkPtr all_gather_v(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                     const std::vector<std::int64_t>& rows, const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kAllGatherV, .input = input, .output = output, .counts = rows},
                   options);
}
at::Tensor all_gather_v(GroupRef group, const at::Tensor& input,
                        const std::vector<std::int64_t>& rows, const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(input, rows_of(group, rows, "all_gather_v"));
  carry_out_now(group, {.op = Op::kAllGatherV, .input = input, .output = output, .counts = rows},
                options);
  return output;
}

WorkPtr gather(GroupRef group, const at::Tensor& output, const at::Tensor& input, int root,
               const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kGather, .input = input, .output = output, .root = root},
                   options);
}
std::vector<at::Tensor> gather(GroupRef group, const at::Tensor& tensor, int root,
                               const CollectiveOptions& options) {
  at::Tensor output;
  if (group->rank() == root) output = with_first_dim(tensor.unsqueeze(0), group->world_size());
  carry_out_now(group, {.op = Op::kGather, .input = tensor, .output = output, .root = root},
                options);
  return output.defined() ? output.unbind(0) : std::vector<at::Tensor>();
}

WorkPtr scatter(GroupRef group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
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
  return carry_out(group, {.op = Op::kScatter, .input = stacked, .output = output, .root = root},
                   options);
}

WorkPtr reduce_scatter(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                       ReduceOp op, const CollectiveOptions& options) {
  return carry_out(group,
                   {.op = Op::kReduceScatter, .input = input, .output = output, .reduce_op = op},
                   options);
}
at::Tensor reduce_scatter(GroupRef group, const at::Tensor& input, ReduceOp op,
                          const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(input, part_size(group, input, "reduce_scatter"));
  carry_out_now(group,
                {.op = Op::kReduceScatter, .input = input, .output = output, .reduce_op = op},
                options);
  return output;
}

WorkPtr reduce_scatter_v(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                         const std::vector<std::int64_t>& rows, ReduceOp op,
                         const CollectiveOptions& options) {
  return carry_out(group,
                   {.op = Op::kReduceScatterV,
                    .input = input,
                    .output = output,
                    .reduce_op = op,
                    .counts = rows},
                   options);
}
at::Tensor reduce_scatter_v(GroupRef group, const at::Tensor& input,
                            const std::vector<std::int64_t>& rows, ReduceOp op,
                            const CollectiveOptions& options) {
  rows_of(group, rows, "reduce_scatter_v");
  at::Tensor output = with_first_dim(input, rows[static_cast<std::size_t>(group->rank())]);
  carry_out_now(group,
                {.op = Op::kReduceScatterV,
                 .input = input,
                 .output = output,
                 .reduce_op = op,
                 .counts = rows},
                options);
  return output;
}

WorkPtr all_to_all_single(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                          const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kAllToAll, .input = input, .output = output}, options);
}
at::Tensor all_to_all_single(GroupRef group, const at::Tensor& input,
                             const CollectiveOptions& options) {
  part_size(group, input, "all_to_all_single");
  at::Tensor output = with_first_dim(input, input.size(0));
  carry_out_now(group, {.op = Op::kAllToAll, .input = input, .output = output}, options);
  return output;
}

WorkPtr all_to_all_single(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                          const std::vector<std::int64_t>& receive_rows,
                          const std::vector<std::int64_t>& send_rows,
                          const CollectiveOptions& options) {
  return carry_out(group,
                   {.op = Op::kAllToAllV,
                    .input = input,
                    .output = output,
                    .counts = send_rows,
                    .receive_counts = receive_rows},
                   options);
}
at::Tensor all_to_all_single(GroupRef group, const at::Tensor& input,
                             const std::vector<std::int64_t>& receive_rows,
                             const std::vector<std::int64_t>& send_rows,
                             const CollectiveOptions& options) {
  at::Tensor output = with_first_dim(input, rows_of(group, receive_rows, "all_to_all_v"));
  carry_out_now(group,
                {.op = Op::kAllToAllV,
                 .input = input,
                 .output = output,
                 .counts = send_rows,
                 .receive_counts = receive_rows},
                options);
  return output;
}

// ---- many at once

WorkPtr all_reduce_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors, ReduceOp op,
                             const CollectiveOptions& options) {
  return carry_out(
      group, {.op = Op::kAllReduce, .reduce_op = op, .lists = TensorLists{{}, tensors}}, options);
}

WorkPtr broadcast_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors, int root,
                            const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kBroadcast, .root = root, .lists = TensorLists{{}, tensors}},
                   options);
}

WorkPtr all_gather_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs,
                             const CollectiveOptions& options) {
  return carry_out(group, {.op = Op::kAllGather, .lists = TensorLists{inputs, outputs}}, options);
}

WorkPtr reduce_scatter_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& inputs, ReduceOp op,
                                 const CollectiveOptions& options) {
  return carry_out(
      group, {.op = Op::kReduceScatter, .reduce_op = op, .lists = TensorLists{inputs, outputs}},
      options);
}

// ---- messages

namespace {

void require_blocking(GroupRef group, const CollectiveOptions& options, const char* what,
                      const char* instead) {
  check(!options.async_op, "{}: {} takes no async_op: call {}, which returns a Work", group->self(),
        what, instead);
}

TensorCall message_of(Op op, const at::Tensor& tensor, int peer, std::uint32_t tag,
                      const CollectiveOptions& options) {
  TensorCall call{.op = op,
                  .peer = peer,
                  .tag = tag,
                  .timeout = options.timeout,
                  .keep_alive = options.keep_alive};
  (op == Op::kSend ? call.input : call.output) = tensor;
  return call;
}

}  // namespace

void send(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
          const CollectiveOptions& options) {
  require_blocking(group, options, "send", "isend()");
  run(group, message_of(Op::kSend, tensor, peer, tag, options));
}

int recv(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
         const CollectiveOptions& options) {
  require_blocking(group, options, "recv", "irecv()");
  const FittedCall fitted(group, message_of(Op::kReceive, tensor, peer, tag, options));
  const PreparedCall prepared(group, fitted.call());
  int source = -1;
  if (prepared.copies) {
    const WorkPtr work = start(group, prepared);
    work->wait();
    source = work->source_rank();
  } else {
    source = engine(*group).recv(prepared.call, prepared.options);
  }
  fitted.copy_back();
  return source;
}

WorkPtr isend(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
              const CollectiveOptions& options) {
  return start(group, message_of(Op::kSend, tensor, peer, tag, options));
}

WorkPtr irecv(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
              const CollectiveOptions& options) {
  return start(group, message_of(Op::kReceive, tensor, peer, tag, options));
}

namespace {

// Starts the receives first, so that arriving messages have a destination.
std::vector<WorkPtr> batch_on_copies(GroupRef group, const std::deque<PreparedCall>& messages) {
  std::vector<WorkPtr> works(messages.size());
  for (const Op op : {Op::kReceive, Op::kSend}) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].call.op == op) works[i] = start(group, messages[i]);
    }
  }
  return works;
}

}  // namespace

std::vector<WorkPtr> batch_isend_irecv(GroupRef group, const std::vector<P2POp>& messages,
                                       const CollectiveOptions& options) {
  std::deque<PreparedCall> prepared;  // a deque, because each element points to its own members
  std::vector<Call> calls;
  const auto keep_alive = std::make_shared<std::vector<std::shared_ptr<void>>>();
  bool has_copies = false;
  std::shared_ptr<const DeviceOrder> order;  // of the messages in a device's memory
  for (const P2POp& message : messages) {
    check(message.op == Op::kSend || message.op == Op::kReceive,
          "{}: batch_isend_irecv takes sends and receives, not {}", group->self(),
          name_of(message.op));
    prepared.emplace_back(
        group, message_of(message.op, message.tensor, message.peer, message.tag, options));
    has_copies |= prepared.back().copies != nullptr;
    if (prepared.back().options.order) order = prepared.back().options.order;
    calls.push_back(prepared.back().call);
    keep_alive->push_back(prepared.back().options.keep_alive);
  }
  if (has_copies) return batch_on_copies(group, prepared);
  return engine(*group).batch_isend_irecv(
      calls, {.timeout = options.timeout, .keep_alive = keep_alive, .order = order});
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

namespace {

std::vector<std::vector<at::Tensor>> all_from_bytes(const std::vector<std::string>& objects) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const std::string& object : objects) lists.push_back(tensors_from_bytes(object));
  return lists;
}

}  // namespace

std::vector<at::Tensor> broadcast_object(GroupRef group, const std::vector<at::Tensor>& tensors,
                                         int root, const ObjectOptions& options) {
  const std::string mine = group->rank() == root ? to_bytes(tensors) : std::string();
  return tensors_from_bytes(broadcast_object(group, mine, root, options));
}

std::vector<std::vector<at::Tensor>> all_gather_object(GroupRef group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options) {
  return all_from_bytes(all_gather_object(group, to_bytes(tensors), options));
}

std::vector<std::vector<at::Tensor>> gather_objects(GroupRef group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options) {
  return all_from_bytes(gather_objects(group, to_bytes(tensors), root, options));
}

}  // namespace paceline
