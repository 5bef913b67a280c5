// Learners that exchange their updates with a server: the bits of the collective form, quorum and
// grace window, weights and ages, and learners that are killed or slow.

#include "paceline/training/parallel/outer_server.h"

#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/store/file_store.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/training/parallel/low_communication.h"
#include "paceline/training/parallel/outer_step.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/worker_process.h"
#include "tests/harness/borrowed_group.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::outer_server_tests {
namespace {

using namespace std::chrono_literals;
using harness::borrowed;
using harness::run_ranks_ok;
using rpc::testing_job::Job;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 12;
constexpr int kElements = 700;

// The change that a learner makes in a step, the same on all its ranks.
at::Tensor update_of(int learner, int step) {
  return at::randn({kElements}, at::detail::createCPUGenerator(learner * 1000 + step)) * 0.1;
}

std::string name_of(int learner, int rank) {
  return "learner" + std::to_string(learner) + (rank == 0 ? "" : "." + std::to_string(rank));
}

// A server on a worker of its own.
struct Served {
  Served(Job& job, const OuterServerOptions& options)
      : server(options), workers(job.join("server")) {
    server.serve(*workers);
  }
  OuterServer server;
  std::unique_ptr<rpc::Workers> workers;
};

// The parameters of each rank at the end. With a job the learners use a server.
std::vector<at::Tensor> train(int learners, int ranks, const LowCommunicationOptions& options,
                              Job* job) {
  std::vector<at::Tensor> all(static_cast<std::size_t>(learners * ranks));
  run_ranks_ok(learners * ranks, [&](ProcessGroup& group) {
    DeviceMesh mesh(borrowed(group), {{"learner", learners}, {"dp", ranks}});
    const int learner = mesh.rank("learner");
    at::Tensor parameters = update_of(0, 0);
    const auto workers = job == nullptr ? nullptr : job->join(name_of(learner, mesh.rank("dp")));
    const auto outer =
        job == nullptr ? std::make_unique<LowCommunication>(mesh.group("learner"), mesh.group("dp"),
                                                            std::vector{parameters}, options)
                       : std::make_unique<LowCommunication>(*workers, "server", mesh.group("dp"),
                                                            std::vector{parameters}, options);
    for (int step = 1; step <= kSteps; ++step) {
      parameters += update_of(learner, step);
      outer->step(8);
    }
    outer->finish();
    all[static_cast<std::size_t>(group.rank())] = parameters;
    group.barrier();  // a learner that leaves is not waited for
  });
  return all;
}

TEST(OuterServer, HasTheBitsOfTheCollectiveFormWithAllLearners) {
  for (const auto& [learners, ranks] : {std::pair(2, 1), std::pair(2, 2), std::pair(4, 1)}) {
    for (const LowCommunicationOptions& options :
         {LowCommunicationOptions{.period = 4},
          LowCommunicationOptions{.period = 4, .fragments = 2, .delay = 1}}) {
      SCOPED_TRACE(std::to_string(learners) + " learners, delay " + std::to_string(options.delay));
      Job job;
      const Served served(job, {.quorum = static_cast<std::size_t>(learners), .grace = 60s});
      const auto expected = train(learners, ranks, options, nullptr);
      const auto got = train(learners, ranks, options, &job);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(expected[i], got[i])) << i;
      EXPECT_EQ(served.server.stats().largest_age, 0);
      EXPECT_EQ(served.server.stats().rounds,
                static_cast<std::uint64_t>(options.fragments * kSteps / options.period));
    }
  }
}

// A learner of one parameter, in a thread of the test.
struct Lone {
  Lone(Job& job, const std::string& name)
      : workers(job.join(name)), outer(*workers, "server", group_, {parameter}, {.period = 1}) {}
  void train(float difference, std::int64_t tokens = 1) {
    parameter -= difference;  // the outer optimizer steps along anchor - parameters
    outer.step(tokens);
  }
  float value() const { return parameter.item<float>(); }

  static std::shared_ptr<ProcessGroup> alone();
  std::shared_ptr<ProcessGroup> group_ = alone();
  at::Tensor parameter = at::zeros({1});
  std::unique_ptr<rpc::Workers> workers;
  LowCommunication outer;
};

std::shared_ptr<ProcessGroup> Lone::alone() {
  return init_process_group({.rendezvous = {.rank = 0,
                                            .world_size = 1,
                                            .store = std::make_shared<MemoryStore>(),
                                            .secret = Secret::generate()}});
}

OuterServerOptions plain_sgd() { return {.lr = 1, .momentum = 0}; }

TEST(OuterServer, WeighsUpdatesByTokens) {
  Job job;
  OuterServerOptions options = plain_sgd();
  options.quorum = 2;
  const Served served(job, options);
  Lone one(job, "one"), two(job, "two");
  std::jthread other([&] { one.train(4, 100); });
  two.train(8, 300);
  other.join();
  EXPECT_EQ(two.value(), -7);  // (100 * 4 + 300 * 8) / 400
  EXPECT_EQ(one.value(), -7);
}

TEST(OuterServer, TellsTheOptimizerTheAgeOfEachUpdate) {
  Job job;
  OuterServerOptions options = plain_sgd();
  std::mutex mutex;
  std::vector<std::int64_t> ages;
  options.weight = [&](const OuterServer::Update& update) {
    const std::lock_guard lock(mutex);
    if (update.learner == "slow") ages.push_back(update.age);
    return static_cast<double>(update.tokens);
  };
  const Served served(job, options);
  Lone fast(job, "fast"), slow(job, "slow");
  for (int i = 0; i < 3; ++i) fast.train(1);
  EXPECT_EQ(fast.value(), -3);
  slow.train(1);  // it began three rounds ago
  EXPECT_EQ(slow.value(), -4);
  EXPECT_EQ(ages.at(0), 3);
  EXPECT_EQ(served.server.stats().largest_age, 3);
  EXPECT_EQ(served.server.stats().rounds, 4U);
  slow.train(1);
  EXPECT_EQ(ages.back(), 0);
}

TEST(OuterServer, TheGraceWindowLetsASlowerLearnerIn) {
  Job job;
  OuterServerOptions options = plain_sgd();
  options.grace = 60s;
  const Served served(job, options);
  Lone fast(job, "fast"), slow(job, "slow");
  std::jthread first([&] { fast.train(2); });
  std::this_thread::sleep_for(50ms);
  slow.train(4);
  first.join();
  EXPECT_EQ(fast.value(), -3);
  EXPECT_EQ(served.server.stats().rounds, 1U);
}

TEST(OuterServer, DoesNotWaitForALearnerThatHasLeft) {
  Job job;
  OuterServerOptions options = plain_sgd();
  options.quorum = 2;
  options.grace = 60s;
  const Served served(job, options);
  Lone one(job, "one");
  { Lone two(job, "two"); }
  one.train(2);
  EXPECT_EQ(one.value(), -2);
}

TEST(OuterServer, ALearnerThatComesLaterBeginsWithTheParametersOfTheServer) {
  Job job;
  const Served served(job, plain_sgd());
  Lone one(job, "one");
  one.train(2);
  const Lone two(job, "two");
  EXPECT_EQ(two.value(), -2);
  EXPECT_TRUE(at::equal(served.server.anchor(), at::full({1}, -2.0F)));
}

TEST(OuterServer, RefusesWhatDoesNotFit) {
  expect_error(ErrorCode::kInvalid, {"quorum 0"}, [] { OuterServer({.quorum = 0}); });
  Job job;
  const Served served(job, {});
  const Lone one(job, "one");
  const auto workers = job.join("two");
  const auto make = [&](const at::Tensor& parameter, const LowCommunicationOptions& options) {
    LowCommunication(*workers, "server", Lone::alone(), {parameter}, options);
  };
  expect_error(ErrorCode::kAborted, {"learner two has 2 parameters, but the others have 1"},
               [&] { make(at::zeros({2}), {}); });
  expect_error(ErrorCode::kAborted, {"learner two has 2 fragments, but the others have 1"},
               [&] { make(at::zeros({1}), {.fragments = 2}); });
  expect_error(ErrorCode::kInvalid, {"warmup_steps 3"},
               [&] { make(at::zeros({1}), {.warmup_steps = 3}); });
}

// Four learners, of which one is four times slower, and one is killed and started again. The
// goodput is the share of its time in which a learner trains.
TEST(OuterServer, AnUpdateThatIsNotFiniteSpoilsNobodysParameters) {
  Job job;
  const Served served(job, plain_sgd());
  Lone good(job, "good"), bad(job, "bad");
  good.train(1);
  EXPECT_THROW(bad.train(std::numeric_limits<float>::quiet_NaN()), Error);
  EXPECT_EQ(served.server.anchor().item<float>(), -1);
  good.train(1);
  EXPECT_EQ(good.value(), -2);
}

TEST(OuterServer, AWeightThatIsNoNumberIsAnErrorAndChangesNothing) {
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    Job job;
    OuterServerOptions options = plain_sgd();
    options.weight = [&](const OuterServer::Update&) { return weight; };
    const Served served(job, options);
    Lone one(job, "one");
    EXPECT_THROW(one.train(1), Error);
    EXPECT_EQ(served.server.anchor().item<float>(), 0);
    EXPECT_EQ(served.server.stats().rounds, 0U);
  }
}

TEST(OuterServer, AFailedRoundIsAnErrorForItsLearnersAndLeavesNothingBehind) {
  Job job;
  OuterServerOptions options = plain_sgd();
  options.quorum = 2;
  std::atomic<bool> fails = true;
  options.weight = [&](const OuterServer::Update&) { return fails ? -1.0 : 1.0; };
  const Served served(job, options);
  Lone one(job, "one"), two(job, "two");
  std::jthread other([&] { EXPECT_THROW(one.train(4), Error); });
  EXPECT_THROW(two.train(8), Error);
  other.join();
  fails = false;
  EXPECT_EQ(served.server.anchor().item<float>(), 0);
  // The updates of the failed round, 4 and 8, do not count in the next one.
  const auto send = [&](Lone& learner, float difference) {
    return learner.workers->call<detail::ExchangeUpdate>(
        "server", {.fragment = 0, .version = 0, .tokens = 1, .payload = at::full({1}, difference)});
  };
  auto first = send(one, 1), second = send(two, 3);
  EXPECT_EQ(first.get().anchor.item<float>(), -2);
  EXPECT_EQ(second.get().anchor.item<float>(), -2);
}

TEST(OuterServer, AnUpdateWhoseCallHasEndedDoesNotCount) {
  Job job;
  OuterServerOptions options = plain_sgd();
  options.quorum = 2;
  const Served served(job, options);
  Lone one(job, "one"), two(job, "two");
  const auto send = [&](Lone& learner, float difference, const rpc::CallOptions& call) {
    return learner.workers->call<detail::ExchangeUpdate>(
        "server", {.fragment = 0, .version = 0, .tokens = 1, .payload = at::full({1}, difference)},
        call);
  };
  EXPECT_THROW(send(one, 100, {.deadline = 100ms}).get(), Error);
  auto again = send(one, 1, {});
  std::this_thread::sleep_for(50ms);  // in which the handler of the first call ends
  auto other = send(two, 3, {});
  EXPECT_EQ(again.get().anchor.item<float>(), -2);
  EXPECT_EQ(other.get().anchor.item<float>(), -2);
  EXPECT_EQ(served.server.stats().updates, 2U);
}

TEST(OuterServer, ARequestThatNoLearnerSendsChangesNothing) {
  using detail::OpenLearner;
  Job job;
  const Served served(job, plain_sgd());
  const auto stranger = job.join("stranger");
  const at::Tensor four = at::zeros({4});
  const std::vector<OpenLearner::Request> requests = {
      {.elements = 4, .fragments = {4, 1}, .parameters = four},
      {.elements = 4, .fragments = {3}, .parameters = four},
      {.elements = 4, .fragments = {-1, 5}, .parameters = four},
      {.elements = 4,
       .fragments = {4, std::numeric_limits<std::int64_t>::max()},
       .parameters = four},
      {.elements = 5, .fragments = {5}, .parameters = four},
      {.elements = 4, .fragments = {4}, .parameters = at::zeros({4}, at::kDouble)}};
  for (const auto& request : requests)
    EXPECT_THROW(stranger->call<OpenLearner>("server", request).get(), Error);
  Lone one(job, "one");  // has one parameter
  one.train(1);
  EXPECT_EQ(one.value(), -1);
}

TEST(OuterServerProcesses, LearnersThatAreKilledOrSlowHoldNobodyUp) {
  struct Counts {
    std::atomic<std::int64_t> trained_us, waited_us, rounds;
  };
  struct Shared {
    std::atomic<int> turn;
    std::atomic<bool> stops;
    std::array<Counts, 5> counts;
  };
  void* const place =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(place, MAP_FAILED);
  auto& shared = *new (place) Shared;
  const FreshDirectory folder;
  const std::string path = folder.file("store");
  const Secret secret = Secret::generate();
  const auto join = [&](const std::string& name) {
    return rpc::join(name, {.store = std::make_shared<FileStore>(path),
                            .secret = secret,
                            .address = "127.0.0.1",
                            .host = name});
  };
  const auto learn = [&](int place_of_counts, const std::string& name, int turn,
                         std::chrono::milliseconds step_time) {
    while (shared.turn < turn) std::this_thread::sleep_for(1ms);
    at::set_num_threads(1);
    const auto workers = join(name);
    at::Tensor parameters = at::zeros({10'000});
    LowCommunication outer(*workers, "server", Lone::alone(), {parameters}, {.period = 20});
    Counts& counts = shared.counts[static_cast<std::size_t>(place_of_counts)];
    const auto us_since = [](Clock::time_point begin) {
      return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
    };
    while (!shared.stops) {
      const auto begin = Clock::now();
      std::this_thread::sleep_for(step_time);
      parameters -= 0.001F;
      counts.trained_us += us_since(begin);
      const auto trained = Clock::now();
      outer.step();
      counts.waited_us += us_since(trained);
      counts.rounds = outer.num_rounds();
    }
    return true;
  };
  using Process = rpc::testing_job::Process;
  std::vector<std::unique_ptr<Process>> learners;
  for (int i = 0; i < 5; ++i) {
    const std::string name =
        "learner" + std::to_string(i == 4 ? 1 : i);  // the last is started again
    learners.push_back(std::make_unique<Process>(
        [&, i, name] { return learn(i, name, i == 4 ? 2 : 1, i == 3 ? 20ms : 5ms); }));
  }
  OuterServer server({.quorum = 2, .grace = 20ms});
  const auto workers = join("server");
  server.serve(*workers);
  shared.turn = 1;
  std::this_thread::sleep_for(1500ms);
  learners[1]->end();  // SIGKILL
  std::this_thread::sleep_for(500ms);
  shared.turn = 2;
  std::this_thread::sleep_for(2000ms);
  shared.stops = true;
  for (const int i : {0, 2, 3, 4}) EXPECT_TRUE(learners[static_cast<std::size_t>(i)]->succeeds());
  double trained = 0, waited = 0;
  for (const Counts& counts : shared.counts) {
    EXPECT_GT(counts.rounds, 0);
    trained += static_cast<double>(counts.trained_us);
    waited += static_cast<double>(counts.waited_us);
  }
  const OuterServer::Stats stats = server.stats();
  std::printf("goodput %.3f, %lu rounds of %lu updates, age %.2f on average and %ld at most\n",
              trained / (trained + waited), stats.rounds, stats.updates, stats.mean_age,
              stats.largest_age);
  EXPECT_GT(trained / (trained + waited), 0.5);  // other tests run at the same time
  EXPECT_GT(stats.largest_age, 0);
}

}  // namespace
}  // namespace paceline::outer_server_tests
