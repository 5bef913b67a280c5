// Owners and holders of remote modules are killed and frozen. Each case is a suite with its own
// process, because the other worker must be forked before LibTorch has threads.

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "paceline/engine/store/file_store.h"

#include "tests/engine/rpc/worker_process.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/training/remote/training.h"

namespace paceline::remote::testing_training {
namespace {

using harness::Says;

// Workers in several processes, which use a file as their store.
class Faults : public testing::Test {
 protected:
  std::unique_ptr<Workers> join(const std::string& name, std::chrono::milliseconds lease = 10s) {
    set_thread_count(1);
    rpc::JoinOptions options{.store = std::make_shared<FileStore>(path_),
                             .secret = secret_,
                             .address = "127.0.0.1",
                             .deadline = 20s,
                             .lease = lease};
    return rpc::join(name, options);
  }
  // A module of the owner, as soon as the owner has one.
  static RemoteModule borrow(Workers& workers) {
    std::optional<RemoteModule> module;
    EXPECT_TRUE(soon([&] {
      try {
        module = workers.call<Lend>("owner", {}, {.deadline = 1s}).get().module;
      } catch (const Error&) {
        return false;
      }
      return true;
    }));
    return module.value_or(RemoteModule());
  }
  template <class M>
  static void serve(Workers& owner, const M& module) {
    serve_modules(owner);
    owner.serve<Lend>([&owner, module](const rpc::Nothing&, rpc::Context&) {
      return Lend::Reply{share(owner, module)};
    });
  }

  const FreshDirectory directory_;
  const std::string path_ = directory_.file("store");
  const Secret secret_ = Secret::generate();
};
using RemoteOwnerKilled = Faults;
using RemoteHolderKilled = Faults;
using RemoteHolderFrozen = Faults;

// A module that blocks from the second pass on.
struct SticksImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (++num_passes > 1) rpc::testing_job::serve_for_ever();
    return input * weight;
  }
  int num_passes = 0;
  at::Tensor weight = register_parameter("weight", torch::ones({2}));
};

TEST_F(RemoteOwnerKilled, forward_backward_and_step_end_with_errors_that_name_it) {
  rpc::testing_job::Process owner([&] {
    const auto workers = join("owner");
    serve(*workers, std::make_shared<SticksImpl>());
    return rpc::testing_job::serve_for_ever();
  });
  const auto trainer = join("trainer");
  const auto remote = borrow(*trainer);
  DistributedOptimizer optimizer(*trainer, {remote}, SGD{.lr = 0.1});
  const at::Tensor leaf = torch::ones({2}).requires_grad_();
  const auto loss = remote->forward(leaf).sum();
  loss.backward(at::Tensor(), /*keep_graph=*/true);
  auto stuck = remote->start({leaf});
  std::thread killer([&] {
    std::this_thread::sleep_for(200ms);  // the pass begins in this time
    owner.end();
  });
  expect_call_error(rpc::CallError::Executed::kUnknown,
                    {"paceline.module.forward of worker owner", "lost"}, [&] { stuck.get(); });
  killer.join();
  expect_call_error(rpc::CallError::Executed::kNo, {"paceline.pass.backward", "owner"},
                    [&] { loss.backward(); });
  try {
    optimizer.step(loss);
    FAIL();
  } catch (const StepError& error) {
    EXPECT_THAT(error.what(), Says("optimizer.not_stepped", "owner"));
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  }
}

TEST_F(RemoteHolderKilled, its_passes_end_with_its_lease) {
  rpc::testing_job::Process holder([&] {
    const auto workers = join("holder");
    const auto remote = borrow(*workers);
    const at::Tensor leaf = torch::ones({2, 4}).requires_grad_();
    const auto loss = remote->forward(leaf).sum() + remote->forward(leaf).square().sum();
    return rpc::testing_job::serve_for_ever();
  });
  const auto owner = join("owner", 1s);
  serve(*owner, mlp(1, 4, 4, 2));
  ASSERT_TRUE(soon([] { return num_kept_passes() == 2; }));
  std::this_thread::sleep_for(1500ms);  // longer than the lease, which the holder renews
  EXPECT_EQ(num_kept_passes(), 2U);
  holder.end();
  EXPECT_TRUE(soon([] { return num_kept_passes() == 0; }));
}

TEST_F(RemoteHolderFrozen, for_longer_than_its_lease_gets_an_error_from_backward) {
  rpc::testing_job::Process holder([&] {
    const auto workers = join("holder");
    const auto remote = borrow(*workers);
    const at::Tensor leaf = torch::ones({2, 4}).requires_grad_();
    const auto loss = remote->forward(leaf).sum();
    const auto has_expired = [&] {
      try {
        loss.backward(at::Tensor(), /*keep_graph=*/true);
      } catch (const rpc::ReferenceError& error) {
        EXPECT_EQ(error.reason(), rpc::ReferenceError::Reason::kExpired) << error.what();
        return true;
      } catch (const rpc::CallError&) {  // the call was under way when the holder froze
      }
      return false;
    };
    EXPECT_TRUE(soon(has_expired));
    // A new reference works.
    return borrow(*workers)->forward(leaf).sum().item<float>() == loss.item<float>();
  });
  const auto owner = join("owner", 1s);
  serve(*owner, mlp(1, 4, 4, 2));
  ASSERT_TRUE(soon([] { return num_kept_passes() == 1; }));
  holder.freeze();
  EXPECT_TRUE(soon([] { return num_kept_passes() == 0; }));
  holder.thaw();
  EXPECT_TRUE(holder.succeeds());
}

}  // namespace
}  // namespace paceline::remote::testing_training
