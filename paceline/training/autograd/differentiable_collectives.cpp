#include "paceline/training/autograd/differentiable_collectives.h"

#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/autograd/regions.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/shaped_messages.h"
#include "paceline/training/tensor/tensor_call.h"

namespace paceline {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Move { kNone, kAllReduce, kSlice, kGather, kReduceScatter, kAllToAll };

// The operations of a forward and a backward pass. `dim` is the dimension along which the forward
// operation cuts or joins parts; `other_dim` is the dimension for the backward operation.
struct CollectivePair : torch::CustomClassHolder {
  const char* name = "";
  GroupPtr group;
  Move forward = Move::kNone, backward = Move::kNone;
  std::int64_t dim = 0, other_dim = 0;

  c10::intrusive_ptr<CollectivePair> back() const {
    auto pair = c10::make_intrusive<CollectivePair>(*this);
    std::swap(pair->forward, pair->backward);
    std::swap(pair->dim, pair->other_dim);
    return pair;
  }
};

std::vector<at::Tensor> parts_of(const CollectivePair& pair, const at::Tensor& input,
                                 std::int64_t dim) {
  const int ranks = pair.group->world_size();
  check(input.size(dim) % ranks == 0,
        "{}: {}: dimension {} of a tensor of [{}] does not divide among {} ranks",
        pair.group->self(), pair.name, dim, fmt::join(input.sizes(), ", "), ranks);
  return input.split(input.size(dim) / ranks, dim);
}

at::Tensor carry_out(const CollectivePair& pair, const at::Tensor& input) {
  ProcessGroup& group = *pair.group;
  switch (pair.forward) {
    case Move::kNone:
      return input.view_as(input);
    case Move::kAllReduce: {
      const at::Tensor own = input.contiguous();
      at::Tensor result = at::empty_like(own);
      run(group, {.op = Op::kAllReduce, .input = own, .output = result});
      return result;
    }
    case Move::kSlice:
      return parts_of(pair, input, pair.dim)[static_cast<std::size_t>(group.rank())].clone(
          at::MemoryFormat::Contiguous);
    case Move::kGather:
      return at::cat(all_gather(group, input.contiguous()), pair.dim);
    case Move::kReduceScatter:
      return reduce_scatter(group, at::stack(parts_of(pair, input, pair.dim))).squeeze(0);
    case Move::kAllToAll:
      break;
  }
  const at::Tensor sent = at::stack(parts_of(pair, input, pair.dim));
  return at::cat(all_to_all_single(group, sent).unbind(), pair.other_dim);
}

struct Moved : torch::autograd::Function<Moved> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<CollectivePair>& pair) {
    context->saved_data["back"] = c10::IValue::make_capsule(pair->back());
    return carry_out(*pair, input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["back"].toCapsule();
    const auto back = c10::static_intrusive_pointer_cast<CollectivePair>(capsule);
    return {apply(gradients[0], back), at::Tensor()};
  }
};

void require_arguments(const char* name, const GroupPtr& group, const at::Tensor& input) {
  check(group != nullptr && group->is_member(), "{}: this rank is not a member of the group", name);
  check(input.defined(), "{}: {}: the tensor is undefined", group->self(), name);
}

std::int64_t positive(const char* name, const ProcessGroup& group, const at::Tensor& input,
                      std::int64_t dim) {
  check(dim >= -input.dim() && dim < input.dim(), "{}: {}: no dimension {} in a tensor of [{}]",
        group.self(), name, dim, fmt::join(input.sizes(), ", "));
  return dim < 0 ? dim + input.dim() : dim;
}

at::Tensor move(const char* name, const GroupPtr& group, const at::Tensor& input, Move forward,
                Move backward, std::int64_t dim = 0, std::int64_t other_dim = 0) {
  require_arguments(name, group, input);
  if (group->world_size() == 1) return input.view_as(input);
  auto pair = c10::make_intrusive<CollectivePair>();
  pair->name = name;
  pair->group = group;
  pair->forward = forward;
  pair->backward = backward;
  pair->dim = dim;
  pair->other_dim = other_dim;
  return Moved::apply(input, pair);
}

at::Tensor move_along(const char* name, const GroupPtr& group, const at::Tensor& input,
                      Move forward, Move backward, std::int64_t dim) {
  require_arguments(name, group, input);
  dim = positive(name, *group, input, dim);
  return move(name, group, input, forward, backward, dim, dim);
}

}  // namespace

at::Tensor copy_to_region(const GroupPtr& group, const at::Tensor& input) {
  return move("copy_to_region", group, input, Move::kNone, Move::kAllReduce);
}

at::Tensor reduce_from_region(const GroupPtr& group, const at::Tensor& input) {
  return move("reduce_from_region", group, input, Move::kAllReduce, Move::kNone);
}

at::Tensor scatter_to_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim) {
  return move_along("scatter_to_region", group, input, Move::kSlice, Move::kGather, dim);
}

at::Tensor gather_from_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim) {
  return move_along("gather_from_region", group, input, Move::kGather, Move::kSlice, dim);
}

at::Tensor all_reduce_sum(const GroupPtr& group, const at::Tensor& input) {
  return move("all_reduce_sum", group, input, Move::kAllReduce, Move::kAllReduce);
}

at::Tensor all_gather_autograd(const GroupPtr& group, const at::Tensor& input, std::int64_t dim) {
  return move_along("all_gather_autograd", group, input, Move::kGather, Move::kReduceScatter, dim);
}

at::Tensor reduce_scatter_autograd(const GroupPtr& group, const at::Tensor& input,
                                   std::int64_t dim) {
  return move_along("reduce_scatter_autograd", group, input, Move::kReduceScatter, Move::kGather,
                    dim);
}

at::Tensor all_to_all_autograd(const GroupPtr& group, const at::Tensor& input,
                               std::int64_t split_dim, std::int64_t concat_dim) {
  constexpr const char* kName = "all_to_all_autograd";
  require_arguments(kName, group, input);
  return move(kName, group, input, Move::kAllToAll, Move::kAllToAll,
              positive(kName, *group, input, split_dim),
              positive(kName, *group, input, concat_dim));
}

namespace {

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

struct ReceiveNode : torch::autograd::Function<ReceiveNode> {
  // `anchor` requires a gradient, so that autograd creates a node for this function.
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
  return ReceiveNode::apply(anchor, c10::make_intrusive<Peer>(group, peer, tag));
}

}  // namespace paceline
