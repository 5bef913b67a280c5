#pragma once

// Small models for tests of remote modules, and bitwise comparisons of their losses and weights.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "paceline/training/remote/distributed_optimizer.h"
#include "paceline/training/remote/remote_module.h"
#include "paceline/training/tensor/compute_settings.h"

#include "tests/engine/rpc/job.h"

namespace paceline::remote::testing_training {

using namespace rpc::testing_job;
using rpc::Workers;
using torch::nn::Sequential;

// Two linear layers whose initial values follow from `seed`.
inline Sequential mlp(std::uint64_t seed, std::int64_t in, std::int64_t hidden, std::int64_t out) {
  torch::manual_seed(seed);
  return Sequential(torch::nn::Linear(in, hidden), torch::nn::Tanh(),
                    torch::nn::Linear(hidden, out));
}

inline at::Tensor batch(std::uint64_t seed, std::int64_t rows, std::int64_t columns) {
  torch::manual_seed(1000 + seed);
  return torch::randn({rows, columns});
}

using State = std::map<std::string, at::Tensor>;
inline State state_of(const torch::nn::Module& module) {
  State state;
  for (const auto& each : module.named_parameters()) state[each.key()] = each.value().detach();
  for (const auto& each : module.named_buffers()) state[each.key()] = each.value().detach();
  return state;
}
inline State state_of(const RemoteModule& module) { return module->state(); }
inline void expect_equal(const State& expected, const State& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(torch::equal(value, got.at(name))) << name << "\n" << value << "\n" << got.at(name);
  }
}
inline void expect_equal(const at::Tensor& expected, const at::Tensor& got) {
  EXPECT_TRUE(torch::equal(expected, got)) << expected << "\n" << got;
}

// Asks a worker for the module that it shares.
struct Lend {
  static constexpr std::string_view kName = "lend";
  using Request = rpc::Nothing;
  struct Reply {
    RemoteModule module;
    static auto fields(auto& m) { return std::tie(m.module); }
  };
};

// Workers "owner" and "third", which have modules, and worker "trainer", all in this process.
class Training : public testing::Test {
 protected:
  Training() {
    set_thread_count(1);
    for (auto* const owner : {owner_.get(), third_.get()}) {
      serve_modules(*owner);
      owner->serve<Lend>(
          [this](const rpc::Nothing&, rpc::Context&) { return Lend::Reply{std::move(to_lend_)}; });
    }
  }
  // At the end of a test no pass may be kept.
  void TearDown() override {
    EXPECT_TRUE(soon([] { return num_kept_passes() == 0; })) << num_kept_passes() << " passes";
  }
  // Gives worker `to` a reference to a module of `owner`.
  template <class M>
  RemoteModule lend(Workers& owner, const M& module, Workers& to) {
    to_lend_ = share(owner, module);
    return to.call<Lend>(owner.name()).get().module;
  }
  template <class M>
  RemoteModule lend(const M& module) {
    return lend(*owner_, module, *trainer_);
  }

  Job job_;
  std::unique_ptr<Workers> owner_ = job_.join("owner");
  std::unique_ptr<Workers> third_ = job_.join("third");
  std::unique_ptr<Workers> trainer_ = job_.join("trainer");
  RemoteModule to_lend_{nullptr};
};

}  // namespace paceline::remote::testing_training
