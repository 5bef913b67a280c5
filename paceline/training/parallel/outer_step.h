#pragma once

// Parts of LowCommunication that learners and their OuterServer share: the messages, the encoding
// of updates, and the outer step.
//
// Thread safety: the functions have no state; no other thread may use their tensors meanwhile.

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/rpc/call_target.h"
#include "paceline/training/remote/tensor_field.h"

namespace paceline::detail {

// Registers a learner. The first learner sends its parameters.
struct OpenLearner {
  static constexpr std::string_view kName = "outer.open";
  static constexpr rpc::Effect kEffect = rpc::Effect::kRepeatable;
  struct Request {
    std::int64_t elements = 0;
    std::vector<std::int64_t> fragments;  // the size of each fragment
    at::Tensor parameters;                // float32 [elements], or undefined
    static auto fields(auto& m) { return std::tie(m.elements, m.fragments, m.parameters); }
  };
  struct Reply {
    at::Tensor anchor;                    // undefined: send the parameters
    std::vector<std::uint64_t> versions;  // the version of each fragment
    static auto fields(auto& m) { return std::tie(m.anchor, m.versions); }
  };
};

// An update of a fragment; the reply comes when its round has ended.
struct ExchangeUpdate {
  static constexpr std::string_view kName = "outer.exchange";
  static constexpr rpc::Effect kEffect = rpc::Effect::kOnce;
  struct Request {
    std::uint64_t fragment = 0, version = 0;  // the learner began from this version
    std::int64_t tokens = 0;
    at::Tensor payload;  // the difference, by encode_update()
    static auto fields(auto& m) { return std::tie(m.fragment, m.version, m.tokens, m.payload); }
  };
  struct Reply {
    std::uint64_t version = 0;
    at::Tensor anchor;  // float32 [elements of the fragment]
    static auto fields(auto& m) { return std::tie(m.version, m.anchor); }
  };
};

inline constexpr std::int64_t kOuterBlock = 256;  // elements that share a scale

// `values`: float32 [n], n a multiple of kOuterBlock. For kFloat returns the tensor itself, for
// kBFloat16 the rounded values, and for kChar a kByte tensor [n / 256, 260]: 256 elements and a
// float32 scale for each block.
at::Tensor encode_update(const at::Tensor& values, at::ScalarType wire);
// Returns the values as float32. Error(kInvalid) for a tensor that encode_update() cannot return.
at::Tensor decode_update(const at::Tensor& payload);

// SGD with Nesterov momentum on the mean difference, in place.
void take_outer_step(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& mean,
                     double lr, double momentum_factor);

}  // namespace paceline::detail
