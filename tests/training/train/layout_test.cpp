// A run that was saved with one number of ranks and one division of model, optimizer and parameters
// continues with any other. Each layout saves what it loaded, and everything must stay bitwise
// equal to the beginning.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/checkpoints/read_checkpoint.h"
#include "paceline/training/train/checkpoints/weights_file.h"
#include "paceline/training/train/run_parts.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/load_checkpoint.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"

namespace paceline::train {
namespace {

using harness::Says;
using ::testing::HasSubstr;

// How ranks divide a run.
struct Layout {
  int dp = 1, tp = 1, pp = 1;
  int stage = 0;  // stage of fully_shard()
  int hosts = 1;
  bool divides_hosts = false;  // the hosts divide the parameters of stage 3

  int world() const { return dp * tp * pp; }
};

std::string describe(const Layout& layout) {
  return fmt::format("dp={}, tp={}, pp={}, stage {}, {} hosts{}", layout.dp, layout.tp, layout.pp,
                     layout.stage, layout.hosts, layout.divides_hosts ? ", divided" : "");
}

std::shared_ptr<ProcessGroup> lent(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

struct Sizes {
  std::int64_t width = 32;
  std::int64_t layers = 3;
  at::ScalarType type = at::kFloat;
};

// One rank's part of a GPT and of everything that belongs to its training.
struct DividedRun {
  DividedRun(ProcessGroup& group, const Layout& layout, const Sizes& sizes, std::uint64_t seed)
      : mesh(lent(group), {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}}) {
    torch::manual_seed(seed);
    const models::GptOptions options{.vocabulary = 64,
                                     .context = 16,
                                     .layers = sizes.layers,
                                     .width = sizes.width,
                                     .heads = 4,
                                     .dropout = 0};
    const models::Layers layers =
        layout.tp == 1 ? models::Layers{} : tensor_parallel_layers(mesh.group("tp"));
    if (layout.pp == 1) {
      model = models::Gpt(options, layers).ptr();
    } else {
      model =
          models::GptStage(options, layers,
                           models::BlockRange::of_stage(options.layers, mesh.rank("pp"), layout.pp))
              .ptr();
    }
    model->register_buffer("seen", at::full({3}, static_cast<double>(seed)));
    for (auto& parameter : model->parameters()) parameter.set_data(parameter.to(sizes.type));
    std::vector<at::Tensor> decayed, others;
    for (const auto& parameter : model->parameters())
      (parameter.dim() > 1 ? decayed : others).push_back(parameter);
    optimizer.emplace(std::vector<optim::ParameterGroup<optim::AdamWOptions>>{
        {decayed, {.weight_decay = 0.1}}, {others, {}}});
    if (layout.stage > 0) {
      core_of(*optimizer)
          .shard(mesh.group("dp"), {.node_shared = layout.stage == 3,
                                    .unit_bytes = layout.stage > 1 ? std::size_t{4096} : 0,
                                    .shard_across_hosts = layout.divides_hosts});
    }
    schedule.emplace(*optimizer, optim::CosineAnnealingLROptions{.T_max = 9});
    average.emplace(optimizer->parameters());
    checkpointed = {&*schedule, &scaler, &*average};
  }

  // Takes steps like a training, with made-up gradients.
  void take_steps(int steps) {
    for (int step = 0; step < steps; ++step) {
      std::uint64_t seed = 100 * static_cast<std::uint64_t>(step);
      for (auto& parameter : model->parameters()) {
        parameter.mutable_grad() =
            at::randn(parameter.sizes(), at::detail::createCPUGenerator(++seed))
                .to(parameter.scalar_type());
      }
      model->parameters()[1].mutable_grad() = at::Tensor();  // this parameter takes no step
      optimizer->step();
      schedule->step();
      average->update();
    }
  }

  DeviceMesh mesh;
  std::shared_ptr<torch::nn::Module> model;
  std::optional<optim::AdamW> optimizer;
  std::optional<optim::CosineAnnealingLR> schedule;
  optim::GradScaler scaler{{.init_scale = 512}};
  std::optional<optim::ExponentialMovingAverage> average;
  RunParts checkpointed;
};

class LayoutTest : public ::testing::Test {
 protected:
  // Runs `body` on each rank of a layout, as processes, and returns what the ranks report.
  std::vector<std::string> with(
      const Layout& layout,
      const std::function<std::string(DividedRun& run, Checkpointer& saved)>& body) {
    at::set_num_threads(1);  // the ranks are forked, which LibTorch's threads would not survive
    harness::RanksOptions options;
    options.adjust = [&](int rank, GroupOptions& group) {
      group.link.host = "h" + std::to_string(rank * layout.hosts / layout.world());
    };
    const auto results = harness::run_process_ranks(
        layout.world(),
        [&](ProcessGroup& group) {
          DividedRun run(group, layout, sizes_, ++seed_ + static_cast<std::uint64_t>(group.rank()));
          const int host = group.rank() * layout.hosts / layout.world();
          Checkpointer checkpointer(
              lent(group),
              {.folder = folder_.path(),
               .keep = 100,
               .memory = in_memory_ ? fmt::format("{}/memory-{}", memories_.path(), host) : "",
               .replicas = run.mesh.group("dp")});
          checkpointer.attach(run.checkpointed);
          return body(run, checkpointer);
        },
        options);
    std::vector<std::string> reports;
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << describe(layout) << ": " << result.report;
      reports.push_back(result.report);
    }
    return reports;
  }

  void begin() {
    with({}, [&](DividedRun& run, Checkpointer& checkpointer) {
      run.take_steps(3);
      save({.epoch = 2, .step = 1, .consumed = 11, .seed = 7, .data = "text"}, run, checkpointer);
      return std::string();
    });
  }
  void save(const TrainingState& state, const DividedRun& run, Checkpointer& checkpointer) const {
    EXPECT_TRUE(checkpointer.save(state, *run.model, *run.optimizer));
    EXPECT_TRUE(checkpointer.finish());
    if (!in_memory_) return;
    EXPECT_TRUE(checkpointer.save_to_memory(state, *run.model, *run.optimizer));
  }
  // Loads step `step` - 1 with this layout and saves it as step `step`.
  void pass_on(const Layout& layout, std::int64_t step) {
    with(layout, [&](DividedRun& run, Checkpointer& checkpointer) {
      const auto restored = checkpointer.restore(*run.model, *run.optimizer);
      EXPECT_TRUE(restored);
      if (!restored) return std::string();
      EXPECT_EQ(restored->state.step, step - 1);
      EXPECT_EQ(restored->from_memory, in_memory_) << describe(layout);
      EXPECT_EQ(restored->state.consumed, 11);
      EXPECT_EQ(restored->state.seed, 7U);
      EXPECT_EQ(run.schedule->num_steps(), 3);
      EXPECT_EQ(run.average->num_updates(), 3);
      run.optimizer->verify_state();
      TrainingState state = restored->state;
      state.step = step;
      save(state, run, checkpointer);
      return std::string();
    });
  }
  std::map<std::string, std::string> tensors_of(std::int64_t step) const {
    const auto loaded =
        harness::load(CheckpointDirectory(folder_.path(), {.read_only = true}), step);
    std::map<std::string, std::string> tensors;
    for (const auto& [name, bytes] : loaded.tensors) tensors[name] = to_string(bytes);
    tensors.erase("random_states");  // has one row for each rank
    return tensors;
  }
  void expect_kept(const std::vector<Layout>& layouts) {
    begin();
    const auto first = tensors_of(1);
    std::int64_t step = 1;
    for (const Layout& layout : layouts) {
      pass_on(layout, ++step);
      const auto now = tensors_of(step);
      EXPECT_EQ(now.size(), first.size());
      for (const auto& [name, bytes] : first) {
        const auto found = now.find(name);
        ASSERT_TRUE(found != now.end()) << name << " after " << describe(layout);
        ASSERT_TRUE(found->second == bytes) << name << " after " << describe(layout);
      }
    }
  }

  const FreshDirectory folder_;
  const FreshDirectory memories_;
  bool in_memory_ = false;  // also in memory, not only on the disk
  Sizes sizes_;
  std::uint64_t seed_ = 0;
};

TEST_F(LayoutTest, stages_of_fully_shard_and_numbers_of_ranks) {
  expect_kept({{.dp = 2},
               {.dp = 3, .stage = 1},
               {.dp = 2, .stage = 2},
               {.dp = 4, .stage = 3},
               {.dp = 5, .stage = 3},
               {},
               {.dp = 8, .stage = 2}});
}

TEST_F(LayoutTest, hosts) {
  expect_kept({{.dp = 4, .stage = 3, .hosts = 2},
               {.dp = 4, .stage = 3, .hosts = 2, .divides_hosts = true},
               {.dp = 2, .stage = 3},
               {.dp = 3, .stage = 3, .hosts = 3, .divides_hosts = true},
               {.dp = 6, .stage = 3, .hosts = 3},
               {.dp = 3, .stage = 1, .hosts = 3}});
}

// The number of hosts and the division among them change. Of four hosts one could be lost.
TEST_F(LayoutTest, in_the_memories_of_hosts) {
  in_memory_ = true;
  expect_kept({{.dp = 2, .stage = 3, .hosts = 2, .divides_hosts = true},
               {.dp = 4, .stage = 3, .hosts = 4, .divides_hosts = true},
               {.dp = 3, .stage = 3, .hosts = 3, .divides_hosts = true},
               {.dp = 4, .stage = 1, .hosts = 2},
               {.dp = 2, .pp = 2, .stage = 2, .hosts = 4},
               {.tp = 2, .pp = 2, .hosts = 4},
               {.dp = 6, .stage = 3, .hosts = 3, .divides_hosts = true},
               {.dp = 2, .tp = 2, .hosts = 2},
               {}});
}

TEST_F(LayoutTest, without_the_memories_of_two_neighbours_the_disk_has_the_newest) {
  in_memory_ = true;
  begin();
  const Layout four{.dp = 4, .stage = 3, .hosts = 4, .divides_hosts = true};
  pass_on(four, 2);
  with(four, [](DividedRun& run, Checkpointer& checkpointer) {
    TrainingState state = checkpointer.restore(*run.model, *run.optimizer)->state;
    state.step = 5;
    EXPECT_TRUE(checkpointer.save_to_memory(state, *run.model, *run.optimizer));
    return std::string();
  });
  with({.dp = 2, .hosts = 2}, [](DividedRun& run, Checkpointer& checkpointer) {
    const auto restored = checkpointer.restore(*run.model, *run.optimizer);
    EXPECT_TRUE(restored && restored->state.step == 2 && !restored->from_memory);
    return std::string();
  });
  with({.dp = 3, .hosts = 3}, [](DividedRun& run, Checkpointer& checkpointer) {
    const auto restored = checkpointer.restore(*run.model, *run.optimizer);
    EXPECT_TRUE(restored && restored->state.step == 5 && restored->from_memory);
    return std::string();
  });
}

TEST_F(LayoutTest, tensor_parallel_parts) {
  expect_kept({{.tp = 2},
               {.dp = 2, .tp = 2},
               {.dp = 2, .tp = 2, .stage = 1},
               {.dp = 1, .tp = 4},
               {.dp = 3, .stage = 2},
               {.dp = 2, .tp = 2, .stage = 3}});
}

TEST_F(LayoutTest, stages_of_a_pipeline_that_share_the_embedding) {
  expect_kept({{.pp = 3},
               {.dp = 2, .pp = 2, .stage = 1},
               {.dp = 2, .stage = 3},
               {.tp = 2, .pp = 2},
               {.dp = 2, .tp = 2, .pp = 2, .stage = 2}});
}

TEST_F(LayoutTest, sixteen_bit_parameters_with_their_masters) {
  sizes_.type = at::kBFloat16;
  expect_kept({{.dp = 2, .stage = 3}, {.tp = 2}, {.dp = 3, .stage = 1}, {.dp = 2, .pp = 2}, {}});
}

// A program without ranks reads the weights of every division; the averages are float32, and the
// parameters here are not.
TEST_F(LayoutTest, the_weights_of_a_checkpoint_are_whole_and_averaged_for_any_division) {
  sizes_.type = at::kBFloat16;
  const FreshDirectory files;
  const std::string last = files.path() + "/last", averaged = files.path() + "/averaged";
  with({}, [&](DividedRun& run, Checkpointer& checkpointer) {
    run.take_steps(3);
    save({.epoch = 2, .step = 1, .consumed = 11, .seed = 7, .data = "text"}, run, checkpointer);
    write_weights(last, weights_of(*run.model));
    const auto swap = run.average->swap_in();
    write_weights(averaged, weights_of(*run.model));
    return std::string();
  });
  std::int64_t step = 1;
  for (const Layout& layout : {Layout{.dp = 2, .stage = 3}, Layout{.tp = 2}, Layout{.pp = 2},
                               Layout{.dp = 4, .stage = 3, .hosts = 2, .divides_hosts = true}})
    pass_on(layout, ++step);
  const auto expect_equal = [](const StateDict& found, const StateDict& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, tensor] : wanted)
      EXPECT_TRUE(found.contains(name) && at::equal(found.at(name), tensor)) << name;
  };
  for (; step > 0; --step) {
    const auto weights = read_checkpoint(folder_.path(), step);
    EXPECT_EQ(weights.step, step);
    EXPECT_TRUE(weights.averaged);
    expect_equal(weights.weights, read_weights(averaged));
    const auto plain = read_checkpoint(folder_.path(), step, false);
    EXPECT_FALSE(plain.averaged);
    expect_equal(plain.weights, read_weights(last));
  }
}

TEST_F(LayoutTest, a_damaged_checkpoint_is_skipped_unless_its_step_is_asked_for) {
  const auto expect_refused = [](const std::string& path, const std::string& reason) {
    expect_error(ErrorCode::kInvalid, {path, reason}, [&] { read_checkpoint(path); });
  };
  expect_refused(folder_.path(), "there is no checkpoint in this directory");
  expect_refused(folder_.file("nowhere"), "the directory does not exist");
  expect_refused(folder_.write("file", ""), "it is a file");
  begin();
  expect_refused(folder_.file("step-00000001"), "it is one checkpoint");
  pass_on({.dp = 2}, 2);
  EXPECT_EQ(read_checkpoint(folder_.path()).step, 2);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".bin") || path.find("step-00000002") == std::string::npos) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.write("damage", 6);
  }
  EXPECT_EQ(read_checkpoint(folder_.path()).step, 1);
  try {
    read_checkpoint(folder_.path(), 2);
    ADD_FAILURE() << "it is damaged";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
  }
  EXPECT_THROW(read_checkpoint(folder_.path(), 7), Error) << "there is no step 7";
}

// Twelve bytes for each parameter and four for the average, divided by the number of ranks that
// share them.
TEST_F(LayoutTest, a_rank_reads_what_it_needs_and_at_most_a_twentieth_more) {
  sizes_ = {.width = 512, .layers = 2};
  begin();
  const auto bytes_of = [&](std::int64_t step, const std::string& prefix) {
    std::uint64_t bytes = 0;
    for (const auto& [name, text] : tensors_of(step))
      bytes += name.starts_with(prefix) ? text.size() : 0;
    return static_cast<double>(bytes);
  };
  const double model = bytes_of(1, "model."), optimizer = bytes_of(1, "optimizer.");
  const double average = bytes_of(1, "average.");
  std::int64_t step = 1;
  const auto expect_read = [&](const Layout& layout, double needed) {
    ++step;
    const auto reports = with(layout, [&](DividedRun& run, Checkpointer& checkpointer) {
      const auto restored = checkpointer.restore(*run.model, *run.optimizer);
      EXPECT_TRUE(restored && restored->state.step == step - 1);
      TrainingState state = restored->state;
      state.step = step;
      EXPECT_TRUE(checkpointer.save(state, *run.model, *run.optimizer));
      EXPECT_TRUE(checkpointer.finish());
      return std::to_string(checkpointer.bytes_read());
    });
    for (const std::string& report : reports)
      EXPECT_LE(std::stod(report), 1.05 * needed) << describe(layout);
  };
  expect_read({.dp = 2, .stage = 1}, model + optimizer / 2 + average);
  expect_read({.dp = 3, .stage = 3}, model / 3 + optimizer / 3 + average);
  expect_read({.dp = 4, .stage = 3}, model / 4 + optimizer / 4 + average);
  expect_read({.dp = 2, .stage = 2}, model + optimizer / 2 + average);
  // Everything except norms and positions is divided in two.
  expect_read({.tp = 2}, (model + optimizer + average) * 0.51);
  expect_read({}, model + optimizer + average);
}

TEST_F(LayoutTest,
       another_model_shows_the_first_difference_of_each_kind_and_their_number_on_every_rank) {
  begin();
  sizes_.layers = 2;
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    DividedRun run(group, {.pp = 2}, sizes_, 1);
    Checkpointer checkpointer(lent(group),
                              {.folder = folder_.path(), .replicas = run.mesh.group("dp")});
    checkpointer.attach(run.checkpointed);
    checkpointer.restore(*run.model, *run.optimizer);
    return std::string();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.code, ErrorCode::kInvalid);
    EXPECT_THAT(result.report, Says("checkpoint.of_another_model"));
    EXPECT_THAT(result.report, Says("checkpoint.tensors_unused", "model.h.2."));
    EXPECT_THAT(result.report, ::testing::Not(HasSubstr("h.0.")));
    EXPECT_LE(std::ranges::count(result.report, '\n'), 3) << result.report;
  }
}

TEST_F(LayoutTest, another_element_type_is_named_with_the_saved_one) {
  begin();
  sizes_.type = at::kBFloat16;
  const auto results = harness::run_process_ranks(1, [&](ProcessGroup& group) {
    DividedRun run(group, {}, sizes_, 1);
    Checkpointer checkpointer(lent(group), {.folder = folder_.path()});
    checkpointer.attach(run.checkpointed);
    checkpointer.restore(*run.model, *run.optimizer);
    return std::string();
  });
  EXPECT_EQ(results[0].code, ErrorCode::kInvalid);
  EXPECT_THAT(results[0].report, Says("checkpoint.shapes_differ", "bfloat16 [96]", "float32 [96]"));
}

}  // namespace
}  // namespace paceline::train
