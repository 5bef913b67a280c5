#include "paceline/tensor/collectives.h"

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/tensor/stream_order.h"
#include "paceline/tensor/tensor_view.h"

namespace paceline {
namespace {

// How a call on dense `tensors` of one device is made: on a device in its stream's order, and the
// device may read and write them after the call.
CallOptions options_for(const ProcessGroup& group, std::vector<at::Tensor> tensors) {
  const c10::Device device = tensors.front().device();
  if (device.is_cpu()) return {};
  require_backend_for(device, parse_backend_choice(group.backend()),
                      fmt::format("rank {}: a tensor", group.rank()));
  for (const at::Tensor& tensor : tensors) {
    check(tensor.device() == device, "rank {}: a tensor on {} and one on {} in one call",
          group.rank(), device.str(), tensor.device().str());
  }
  return {.keep_alive = std::make_shared<std::vector<at::Tensor>>(std::move(tensors)),
          .order = order_in_current_stream(device)};
}

// Calls `operation` with a dense version of `tensor`, whose new contents are copied back when it is
// not `tensor` itself.
template <class Operation>
void with_dense(const at::Tensor& tensor, Operation operation) {
  check(tensor.defined(), "a tensor that is to be communicated is undefined");
  if (is_dense(tensor)) {
    operation(tensor);
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor dense = tensor.contiguous();
  operation(dense);
  tensor.copy_(dense);
}

at::Tensor with_first_dim(const at::Tensor& like, std::int64_t first) {
  auto sizes = like.sizes().vec();
  if (sizes.empty()) sizes.push_back(1);
  sizes[0] = first;
  return at::empty(sizes, like.options());
}

// Dim 0 of `input`, which must divide by the number of ranks.
std::int64_t part_size(ProcessGroup& group, const at::Tensor& input, const char* what) {
  check(input.dim() > 0 && input.size(0) % group.world_size() == 0,
        "rank {}: {}: dim 0 of the input ({}) does not divide by {} ranks", group.rank(), what,
        input.dim() > 0 ? input.size(0) : 0, group.world_size());
  return input.size(0) / group.world_size();
}

}  // namespace

void all_reduce(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op) {
  with_dense(tensor, [&](const at::Tensor& dense) {
    group.all_reduce(dense_view(dense), op, options_for(group, {dense}));
  });
}

WorkPtr all_reduce_async(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op) {
  const Buffer view = dense_view(tensor);
  CallOptions options = options_for(group, {tensor});
  if (!options.keep_alive) options.keep_alive = std::make_shared<at::Tensor>(tensor);
  return group.all_reduce_async(view, op, options);
}

void broadcast(ProcessGroup& group, const at::Tensor& tensor, int root) {
  with_dense(tensor, [&](const at::Tensor& dense) {
    group.broadcast(dense_view(dense), root, options_for(group, {dense}));
  });
}

void reduce(ProcessGroup& group, const at::Tensor& tensor, int root, ReduceOp op) {
  with_dense(tensor, [&](const at::Tensor& dense) {
    group.reduce(dense_view(dense), root, op, options_for(group, {dense}));
  });
}

at::Tensor all_gather_into_tensor(ProcessGroup& group, const at::Tensor& tensor) {
  const at::Tensor input = tensor.contiguous();
  at::Tensor output =
      with_first_dim(input, (input.dim() > 0 ? input.size(0) : 1) * group.world_size());
  group.all_gather(dense_view(input), dense_view(output), options_for(group, {input, output}));
  return output;
}

std::vector<at::Tensor> all_gather(ProcessGroup& group, const at::Tensor& tensor) {
  const at::Tensor row = tensor.contiguous().unsqueeze(0);
  return all_gather_into_tensor(group, row).unbind(0);
}

std::vector<at::Tensor> gather(ProcessGroup& group, const at::Tensor& tensor, int root) {
  const at::Tensor input = tensor.contiguous();
  if (group.rank() != root) {
    group.gather(dense_view(input), {}, root, options_for(group, {input}));
    return {};
  }
  const at::Tensor output = with_first_dim(input.unsqueeze(0), group.world_size());
  group.gather(dense_view(input), dense_view(output), root, options_for(group, {input, output}));
  return output.unbind(0);
}

void scatter(ProcessGroup& group, const std::vector<at::Tensor>& inputs, const at::Tensor& output,
             int root) {
  with_dense(output, [&](const at::Tensor& dense) {
    const Buffer view = dense_view(dense);
    if (group.rank() != root) {
      group.scatter({}, view, root, options_for(group, {dense}));
      return;
    }
    check(static_cast<int>(inputs.size()) == group.world_size(),
          "rank {}: scatter: root gives {} tensors to {} ranks", group.rank(), inputs.size(),
          group.world_size());
    const at::Tensor stacked = at::stack(inputs);
    group.scatter(dense_view(stacked), view, root, options_for(group, {dense, stacked}));
  });
}

at::Tensor reduce_scatter(ProcessGroup& group, const at::Tensor& input, ReduceOp op) {
  const at::Tensor dense = input.contiguous();
  const at::Tensor output = with_first_dim(dense, part_size(group, dense, "reduce_scatter"));
  group.reduce_scatter(dense_view(dense), dense_view(output), op,
                       options_for(group, {dense, output}));
  return output;
}

at::Tensor all_to_all_single(ProcessGroup& group, const at::Tensor& input) {
  const at::Tensor dense = input.contiguous();
  part_size(group, dense, "all_to_all_single");
  const at::Tensor output = at::empty_like(dense);
  group.all_to_all(dense_view(dense), dense_view(output), options_for(group, {dense, output}));
  return output;
}

void send(ProcessGroup& group, const at::Tensor& tensor, int peer, std::uint32_t tag) {
  const at::Tensor dense = is_dense(tensor) ? tensor : tensor.contiguous();
  group.send(dense_view(dense), peer, tag);
}

int recv(ProcessGroup& group, const at::Tensor& tensor, int peer, std::uint32_t tag) {
  int source = -1;
  with_dense(tensor,
             [&](const at::Tensor& dense) { source = group.recv(dense_view(dense), peer, tag); });
  return source;
}

at::Tensor empty_symmetric(ProcessGroup& group, at::IntArrayRef sizes, at::ScalarType type) {
  std::size_t count = 1;
  for (const auto size : sizes) {
    check(size >= 0, "empty_symmetric: a size is negative");
    count *= static_cast<std::size_t>(size);
  }
  if (count == 0) return at::zeros(sizes, at::TensorOptions(type));
  const SymmetricBuffer buffer = group.allocate_symmetric(count * size_of(to_dtype(type)));
  return at::from_blob(
      buffer.data(), sizes, [buffer](void*) {}, at::TensorOptions(type));
}

}  // namespace paceline
