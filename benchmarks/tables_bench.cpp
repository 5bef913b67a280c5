// Pull and push of a batch of rows, in microseconds: an array in one process with the same kernels,
// a table in the memory of the host for one and for two workers, and a table on a server over TCP.
//
//   tables_bench                          4 million rows of 64 floats, batches of 1,024, skew 1.05
//   tables_bench --skew 1.3 --rows 1000000
//
// Ids are drawn at random, the k-th most frequent one with a probability in proportion to k^-skew,
// and are spread over the rows. Each form runs in processes of its own; docs/tables.md has results.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/engine/store/file_store.h"
#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/servers/row_server.h"
#include "paceline/engine/tables/tables.h"

#include "benchmarks/spread.h"

namespace {

namespace optim = paceline::optim;
namespace rpc = paceline::rpc;
namespace tables = paceline::tables;
using Clock = std::chrono::steady_clock;
using Ids = std::vector<tables::Id>;

struct Setting {
  std::int64_t rows = 4'000'000;
  std::uint32_t width = 64;
  std::size_t batch = 1024;
  double skew = 1.05;
  int batches = 300, rounds = 5;
};

constexpr double kLr = 0.01;
constexpr std::size_t kMaxRounds = 64;

std::vector<Ids> draw_batches(const Setting& setting, double skew, unsigned seed) {
  std::vector<double> sums(static_cast<std::size_t>(setting.rows));
  double sum = 0;
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] = sum += std::pow(static_cast<double>(i + 1), -skew);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, sum);
  std::vector<Ids> batches(static_cast<std::size_t>(setting.batches));
  for (Ids& batch : batches) {
    batch.resize(setting.batch);
    for (tables::Id& id : batch) {
      const auto found = std::lower_bound(sums.begin(), sums.end(), uniform(random));
      const auto number = static_cast<std::uint64_t>(found - sums.begin());
      // `number` is 0 for the most frequent id. A prime factor gives different ids different rows.
      id = static_cast<tables::Id>(number * 2'654'435'761 %
                                   static_cast<std::uint64_t>(setting.rows));
    }
  }
  return batches;
}

// Rows of one process, as an optimizer has them: an array with a sum of squares behind each row.
class Array {
 public:
  explicit Array(const Setting& setting)
      : width_(setting.width),
        rows_(static_cast<std::size_t>(setting.rows) * (width_ + 1), 0.01F) {}
  void pull(std::span<const tables::Id> ids, std::span<float> values) const {
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::memcpy(values.data() + i * width_, row(ids[i]), width_ * sizeof(float));
  }
  void push(std::span<const tables::Id> ids, std::span<const float> gradients) {
    batch_.assign(ids);
    std::vector<float> sum;
    std::array<optim::WordSums, 2> sums;
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      const float* const gradient = batch_.gradient(i, gradients, width_, sum);
      float* const row = this->row(batch_.id(i));
      row[width_] += static_cast<float>(optim::sum_of_squares(gradient, width_) / width_);
      optim::sgd_kernel({.lr = static_cast<float>(kLr) / (std::sqrt(row[width_]) + 1e-10F)}, row,
                        gradient, nullptr, width_, sums.data());
    }
  }

 private:
  float* row(tables::Id id) { return rows_.data() + static_cast<std::size_t>(id) * (width_ + 1); }
  const float* row(tables::Id id) const {
    return rows_.data() + static_cast<std::size_t>(id) * (width_ + 1);
  }
  const std::uint32_t width_;
  std::vector<float> rows_;
  tables::RowBatch batch_;
};

// The times of the processes of a form, in memory that they share.
struct Times {
  double pull_us[kMaxRounds], push_us[kMaxRounds];
  std::atomic<int> ready;
};
Times& shared_times() {
  void* const place =
      ::mmap(nullptr, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) throw std::bad_alloc();
  return *new (place) Times;
}

// Microseconds of a pull and of a push, a value for each round. `worker` 0 writes them.
template <class Rows>
void measure(Rows& rows, const Setting& setting, double skew, int worker, int workers,
             Times& times) {
  const auto batches = draw_batches(setting, skew, 7 + static_cast<unsigned>(worker));
  std::vector<float> values(setting.batch * setting.width);
  std::vector<float> gradients(values.size());
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = 1e-3F * static_cast<float>(i % 17);
  if (worker == 0) {  // creates all rows
    Ids all;
    for (tables::Id id = 0; id < setting.rows; ++id) {
      all.push_back(id);
      if (all.size() == setting.batch || id + 1 == setting.rows) {
        rows.push(all, std::span(gradients).first(all.size() * setting.width));
        all.clear();
      }
    }
  }
  ++times.ready;
  while (times.ready < workers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int round = 0; round < setting.rounds; ++round) {
    Clock::duration pull{}, push{};
    for (const Ids& batch : batches) {
      const auto begin = Clock::now();
      rows.pull(batch, values);
      const auto middle = Clock::now();
      rows.push(batch, gradients);
      push += Clock::now() - middle;
      pull += middle - begin;
    }
    const auto us = [&](Clock::duration duration) {
      return std::chrono::duration<double, std::micro>(duration).count() / setting.batches;
    };
    if (worker == 0) {
      times.pull_us[round] = us(pull);
      times.push_us[round] = us(push);
    }
  }
}

void run_processes(const std::vector<std::function<void()>>& bodies) {
  std::vector<pid_t> pids;
  for (const auto& body : bodies) {
    const pid_t pid = fork();
    if (pid == 0) {
      body();
      _exit(0);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) throw std::runtime_error("a process of the benchmark failed");
  }
}

class Job {
 public:
  Job() {
    std::string name = (std::filesystem::temp_directory_path() / "tables_bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    folder_ = name;
  }
  ~Job() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  // Each worker is a host of its own, so calls go over TCP.
  std::unique_ptr<rpc::Workers> join(const std::string& name,
                                     std::function<void(rpc::Workers&)> prepare = {}) const {
    return rpc::join(name, {.prepare = std::move(prepare),
                            .store = std::make_shared<paceline::FileStore>(folder_ + "/store"),
                            .secret = secret_,
                            .address = "127.0.0.1",
                            .host = name});
  }

 private:
  std::string folder_;
  const paceline::Secret secret_ = paceline::Secret::generate();
};

tables::RowOptions options_of(const Setting& setting) {
  return {.width = setting.width,
          .optimizer = tables::RowAdagrad{.lr = kLr},
          .capacity = static_cast<std::uint64_t>(setting.rows)};
}

void report(const std::string& name, const Setting& setting, const Times& times) {
  const auto n = static_cast<std::size_t>(setting.rounds);
  std::vector<double> both;
  for (std::size_t i = 0; i < n; ++i) both.push_back(times.pull_us[i] + times.push_us[i]);
  fmt::print("{:<32} pull {:>24} us, push {:>24} us, both {:>24} us\n", name,
             paceline::benchmarks::with_spread({times.pull_us, times.pull_us + n}),
             paceline::benchmarks::with_spread({times.push_us, times.push_us + n}),
             paceline::benchmarks::with_spread(both));
  std::fflush(stdout);
}

void run_array(const Setting& setting) {
  Times& times = shared_times();
  run_processes({[&] {
    Array array(setting);
    measure(array, setting, setting.skew, 0, 1, times);
  }});
  report("array in one process", setting, times);
}

void run_table(const Setting& setting, double skew, int workers) {
  const Job job;
  Times& times = shared_times();
  std::vector<std::function<void()>> bodies;
  for (int worker = 0; worker < workers; ++worker) {
    bodies.emplace_back([&, worker] {
      const auto joined = job.join("w" + std::to_string(worker));
      const auto rows = tables::Tables(*joined).open_rows("t", options_of(setting));
      measure(*rows, setting, skew, worker, workers, times);
    });
  }
  run_processes(bodies);
  report(fmt::format("table, {} worker{}, skew {}", workers, workers == 1 ? "" : "s", skew),
         setting, times);
}

void run_server(const Setting& setting, bool as_bfloat16) {
  const Job job;
  Times& times = shared_times();
  run_processes(
      {[&] {
         tables::RowServer server;
         const auto joined = job.join("server0", [&](rpc::Workers& self) { server.serve(self); });
         joined->wait_until_gone("client");
       },
       [&] {
         const auto joined = job.join("client");
         const auto rows = tables::Tables(*joined).open_rows(
             "t", options_of(setting), {.servers = {"server0"}, .as_bfloat16 = as_bfloat16});
         measure(*rows, setting, setting.skew, 0, 1, times);
       }});
  report(as_bfloat16 ? "server over TCP, bfloat16" : "server over TCP", setting, times);
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  bool no_servers = false;
  CLI::App app("Pull and push of a batch of rows, beside an array in one process.");
  app.add_option("--rows", setting.rows, "of the table")->capture_default_str();
  app.add_option("--width", setting.width, "floats of a row")->capture_default_str();
  app.add_option("--batch", setting.batch, "ids of a pull and a push")->capture_default_str();
  app.add_option("--skew", setting.skew, "exponent of the power law")->capture_default_str();
  app.add_option("--batches", setting.batches, "of a round")->capture_default_str();
  app.add_option("--rounds", setting.rounds)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_flag("--no-servers", no_servers, "only tables in the memory of this host");
  CLI11_PARSE(app, argc, argv);
  run_array(setting);
  run_table(setting, setting.skew, 1);
  run_table(setting, setting.skew, 2);
  run_table(setting, 0, 2);
  run_table(setting, 1.3, 2);
  if (no_servers) return 0;
  run_server(setting, false);
  run_server(setting, true);
}
