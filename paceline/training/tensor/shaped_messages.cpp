#include "paceline/training/tensor/shaped_messages.h"

#include <span>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_call.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

struct NewTensor : MessageAllocator {
  std::byte* make(Dtype dtype, std::span<const std::int64_t> sizes) override {
    const at::IntArrayRef dimensions(sizes.data(), sizes.size());
    tensor = at::empty(dimensions, at::TensorOptions(to_scalar_type(dtype)));
    return static_cast<std::byte*>(tensor.data_ptr());
  }
  at::Tensor tensor;
};

}  // namespace

void send_with_shape(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                     const CollectiveOptions& options) {
  isend_with_shape(group, tensor.contiguous(), peer, tag, options)->wait();
}

WorkPtr isend_with_shape(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag,
                         const CollectiveOptions& options) {
  check(tensor.is_contiguous(),
        "{}: isend_with_shape: the tensor is not contiguous; pass tensor.contiguous() instead",
        group->self());
  return start(group, {.op = Op::kSend,
                       .input = tensor,
                       .peer = peer,
                       .tag = tag,
                       .with_shape = true,
                       .timeout = options.timeout,
                       .keep_alive = options.keep_alive});
}

ReceivedTensor recv_with_shape(GroupRef group, int peer, std::uint32_t tag,
                               const CollectiveOptions& options) {
  return irecv_with_shape(group, peer, tag, options).wait();
}

PendingTensor irecv_with_shape(GroupRef group, int peer, std::uint32_t tag,
                               const CollectiveOptions& options) {
  auto allocator = std::make_shared<NewTensor>();
  auto work =
      engine(*group).start({.op = Op::kReceive, .peer = peer, .tag = tag, .allocator = allocator},
                           {.timeout = options.timeout, .keep_alive = options.keep_alive});
  const at::Tensor* const tensor = &allocator->tensor;
  return {std::move(work), std::shared_ptr<const at::Tensor>(std::move(allocator), tensor)};
}

}  // namespace paceline
