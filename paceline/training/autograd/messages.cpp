#include "paceline/training/autograd/messages.h"

#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Peer : torch::CustomClassHolder {
  Peer(GroupPtr of, int number, std::uint32_t marked)
      : group(std::move(of)), rank(number), tag(marked) {}
  GroupPtr group;
  int rank;
  std::uint32_t tag;
};

c10::intrusive_ptr<Peer> peer_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Peer>(context->saved_data["peer"].toCapsule());
}

struct Sent : torch::autograd::Function<Sent> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const c10::intrusive_ptr<Peer>& peer) {
    context->saved_data["peer"] = c10::IValue::make_capsule(peer);
    context->saved_data["sizes"] = tensor.sizes().vec();
    context->saved_data["type"] = static_cast<std::int64_t>(tensor.scalar_type());
    send_with_shape(*peer->group, tensor.contiguous(), peer->rank, peer->tag);
    return at::zeros({}, tensor.options());
  }

  static variable_list backward(AutogradContext* context, const variable_list&) {
    const auto peer = peer_of(context);
    const at::Tensor gradient = recv_with_shape(*peer->group, peer->rank, peer->tag).tensor;
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    check(gradient.sizes() == at::IntArrayRef(sizes) && gradient.scalar_type() == type,
          "{}: the gradient from {} is {} [{}]; what was sent is {} [{}]", peer->group->self(),
          peer->group->name_of_member(static_cast<std::size_t>(peer->rank)),
          c10::toString(gradient.scalar_type()), fmt::join(gradient.sizes(), ", "),
          c10::toString(type), fmt::join(sizes, ", "));
    return {gradient, at::Tensor()};
  }
};

struct Received : torch::autograd::Function<Received> {
  // `anchor` is what makes autograd look for a gradient.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& anchor,
                            const c10::intrusive_ptr<Peer>& peer) {
    context->saved_data["peer"] = c10::IValue::make_capsule(peer);
    (void)anchor;
    at::Tensor tensor = recv_with_shape(*peer->group, peer->rank, peer->tag).tensor;
    if (!at::isFloatingType(tensor.scalar_type()) && !at::isComplexType(tensor.scalar_type()))
      context->mark_non_differentiable({tensor});
    return tensor;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto peer = peer_of(context);
    send_with_shape(*peer->group, gradients[0].contiguous(), peer->rank, peer->tag);
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor send_with_gradient(const GroupPtr& group, const at::Tensor& tensor, int peer,
                              std::uint32_t tag) {
  check(group != nullptr && tensor.defined(), "send_with_gradient: no group, or no tensor");
  return Sent::apply(tensor, c10::make_intrusive<Peer>(group, peer, tag));
}

at::Tensor recv_with_gradient(const GroupPtr& group, int peer, std::uint32_t tag) {
  check(group != nullptr, "recv_with_gradient: no group");
  const at::Tensor anchor = at::empty({0}, at::kFloat).requires_grad_();
  return Received::apply(anchor, c10::make_intrusive<Peer>(group, peer, tag));
}

}  // namespace paceline
