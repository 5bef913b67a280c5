// A loop of the program's own attaches the parts of its run under names: LibTorch's optimizers, the
// loader, values. A resumed run ends with the bits of one that was not interrupted.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/models/layers.h"
#include "paceline/training/optim/lr_scheduler.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/checkpoints/read_checkpoint.h"
#include "paceline/training/train/checkpoints/weights_file.h"
#include "paceline/training/train/run_parts.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using harness::borrowed;
using ::testing::HasSubstr;

constexpr std::int64_t kEpochsOfLoop = 3;

// A class with state() and set_state().
struct Patience {
  std::int64_t left = 3;

  optim::Metadata state() const { return {{"left", optim::to_word(left)}}; }
  void set_state(const optim::Metadata& words) {
    left = optim::count_in(words, "left", "patience");
  }
};

// The loop that a user of LibTorch's optimizers would write.
struct OwnLoop {
  explicit OwnLoop(ProcessGroup& of)
      : group(borrowed(of)),
        loader(std::make_shared<data::ImageSamples>(
                   small_dataset(),
                   data::ImageSamplesOptions{.crop_padding = 1, .random_flip = true, .seed = 3}),
               data::DistributedSampler(50, of.world_size(), of.rank(), {.seed = 3}),
               {.global_batch_size = 10}),
        model(SmallRun::make_model(of), group),
        optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)) {}

  void attach_to(Checkpointer& checkpointer) {
    checkpointer.attach("model", model);
    checkpointer.attach("optimizer", optimizer);
    checkpointer.attach("data", loader);
    checkpointer.attach("best", best);
    checkpointer.attach("patience", patience);
    checkpointer.attach("seen", seen);
    checkpointer.attach("note", note);
  }

  // Saves after step `save_at` and ends after step `end_at`.
  void train(Checkpointer& checkpointer, std::int64_t save_at, std::int64_t end_at) {
    std::int64_t step = checkpointer.begin(3);
    for (std::int64_t epoch = loader.position().epoch; epoch < kEpochsOfLoop; ++epoch) {
      for (const data::Batch& batch : loader.epoch(epoch)) {
        optimizer.zero_grad();
        const at::Tensor loss =
            torch::nn::functional::cross_entropy(model(batch.data), batch.target);
        batch.weighted(loss).backward();
        optimizer.step();
        best = std::min(best, model.parameters()[0].abs().sum().item<double>());
        seen += 1;
        --patience.left;
        note += batch.ends_step ? "." : ",";
        if (++step == save_at) {
          EXPECT_TRUE(checkpointer.save(step));
        }
        if (step == end_at) {
          EXPECT_TRUE(checkpointer.finish());
          return;
        }
      }
    }
  }

  std::string bits() {
    std::ostringstream out;
    std::vector<at::Tensor> all;
    for (const auto& parameter : model.parameters()) all.push_back(parameter.detach().flatten());
    for (const auto& buffer : model.buffers()) all.push_back(buffer.flatten().to(at::kFloat));
    const at::Tensor flat = at::cat(all);
    const std::string_view bytes(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
    out << std::hash<std::string_view>()(bytes) << ' ' << std::hexfloat << best << ' '
        << patience.left << ' ' << seen.sum().item<float>() << ' ' << note;
    return out.str();
  }

  std::shared_ptr<ProcessGroup> group;
  data::DataLoader loader;
  DistributedDataParallel<SmallNet> model;
  torch::optim::SGD optimizer;
  double best = std::numeric_limits<double>::infinity();
  Patience patience;
  at::Tensor seen = at::zeros({2});
  std::string note;
};

class AttachedPartsTest : public testing::Test {
 protected:
  // The ranks are forked, which LibTorch's threads would not survive.
  AttachedPartsTest() { at::set_num_threads(1); }

  using Body = std::function<std::string(ProcessGroup& group)>;

  static std::string on_ranks(int ranks, const Body& body) {
    std::string reports;
    for (const auto& result : harness::run_process_ranks(ranks, body)) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      reports += result.report + "|";
    }
    return reports;
  }
  static void expect_error(ErrorCode code, const std::string& text, const Body& body) {
    for (const auto& result : harness::run_process_ranks(2, body)) {
      EXPECT_TRUE(result.threw) << text;
      EXPECT_EQ(result.code, code) << result.report;
      EXPECT_THAT(result.report, HasSubstr(text));
    }
  }
  std::string train(int ranks, std::int64_t save_at, std::int64_t end_at, bool resume) {
    return on_ranks(ranks, [&](ProcessGroup& group) {
      OwnLoop loop(group);
      Checkpointer checkpointer(loop.group, {.folder = folder_.path(), .resume = resume});
      loop.attach_to(checkpointer);
      loop.train(checkpointer, save_at, end_at);
      return loop.bits();
    });
  }

  const FreshDirectory folder_;
};

TEST_F(AttachedPartsTest, a_resumed_loop_ends_with_the_bits_of_one_that_was_not_interrupted) {
  const FreshDirectory other;
  const std::string straight = on_ranks(2, [&](ProcessGroup& group) {
    OwnLoop loop(group);
    Checkpointer checkpointer(loop.group, {.folder = other.path()});
    loop.attach_to(checkpointer);
    loop.train(checkpointer, 0, 1000);
    return loop.bits();
  });
  train(2, 7, 9, false);  // step 7 is in the middle of the second epoch
  EXPECT_EQ(train(2, 0, 1000, true), straight);
}

TEST_F(AttachedPartsTest, a_part_under_two_names_is_refused) {
  expect_error(ErrorCode::kInvalid, "\"twin\" is attached already, as \"model\"",
               [&](ProcessGroup& group) {
                 OwnLoop loop(group);
                 Checkpointer checkpointer(loop.group, {.folder = folder_.path()});
                 loop.attach_to(checkpointer);
                 checkpointer.attach("twin", loop.model);
                 return std::string();
               });
}

TEST_F(AttachedPartsTest, another_order_of_the_samples_in_the_middle_of_an_epoch_is_refused) {
  train(2, 7, 9, false);
  expect_error(ErrorCode::kInvalid,
               "in the middle of epoch 1 of 50 samples, shuffled with seed 3, and this loader has "
               "50 samples, shuffled with seed 4",
               [&](ProcessGroup& group) {
                 OwnLoop loop(group);
                 data::DataLoader other(
                     std::make_shared<data::ImageSamples>(small_dataset()),
                     data::DistributedSampler(50, group.world_size(), group.rank(), {.seed = 4}),
                     {.global_batch_size = 10});
                 Checkpointer checkpointer(loop.group, {.folder = folder_.path(), .resume = true});
                 checkpointer.attach("model", loop.model);
                 checkpointer.attach("optimizer", loop.optimizer);
                 checkpointer.attach("data", other);
                 checkpointer.attach("best", loop.best);
                 checkpointer.attach("patience", loop.patience);
                 checkpointer.attach("seen", loop.seen);
                 checkpointer.attach("note", loop.note);
                 checkpointer.begin(3);
                 return std::string();
               });
}

TEST_F(AttachedPartsTest, nans_in_parameters_do_not_cost_the_last_checkpoint_without_them) {
  on_ranks(2, [&](ProcessGroup& group) {
    OwnLoop loop(group);
    Checkpointer checkpointer(loop.group, {.folder = folder_.path(), .keep = 1});
    loop.attach_to(checkpointer);
    checkpointer.begin(3);
    EXPECT_TRUE(checkpointer.save(1));
    EXPECT_TRUE(checkpointer.save(2));
    {
      const torch::NoGradGuard no_grad;
      loop.model.module().head->bias.fill_(std::numeric_limits<float>::quiet_NaN());
    }
    EXPECT_TRUE(checkpointer.save(3));
    EXPECT_TRUE(checkpointer.save(4));
    EXPECT_TRUE(checkpointer.finish());
    return std::string();
  });
  EXPECT_FALSE(std::filesystem::exists(folder_.file("step-00000001")));
  EXPECT_TRUE(std::filesystem::exists(folder_.file("step-00000002")));
  EXPECT_FALSE(std::filesystem::exists(folder_.file("step-00000003")));
  EXPECT_TRUE(std::filesystem::exists(folder_.file("step-00000004")));
}

TEST_F(AttachedPartsTest, another_number_of_ranks_continues_with_all_parts) {
  train(2, 5, 5, false);  // the end of the first epoch, inside of its loop
  on_ranks(3, [&](ProcessGroup& group) {
    OwnLoop loop(group);
    Checkpointer checkpointer(loop.group, {.folder = folder_.path(), .resume = true});
    loop.attach_to(checkpointer);
    EXPECT_EQ(checkpointer.begin(), 5);
    EXPECT_EQ(loop.loader.position(), (data::DataLoader::Position{.epoch = 0, .consumed = 50}));
    EXPECT_EQ(loop.patience.left, -2);
    EXPECT_EQ(loop.note, ".....");
    EXPECT_EQ(loop.seen[1].item<float>(), 5);
    EXPECT_TRUE(std::isfinite(loop.best));
    EXPECT_EQ(loop.optimizer.state().size(), loop.model.parameters().size()) << "momenta";
    return std::string();
  });
  SmallNet net;
  load_weights(net, read_checkpoint(folder_.path()).weights);
}

TEST_F(AttachedPartsTest, two_models_with_an_optimizer_each) {
  const auto gan = [&](ProcessGroup& group, bool resume, double add) {
    torch::manual_seed(1);
    torch::nn::Linear generator(3, 2), critic(2, 1);
    torch::optim::Adam of_generator(generator->parameters()), of_critic(critic->parameters());
    Checkpointer checkpointer(borrowed(group), {.folder = folder_.path(), .resume = resume});
    checkpointer.attach("generator", generator);
    checkpointer.attach("critic", critic);
    checkpointer.attach("of_generator", of_generator);
    checkpointer.attach("of_critic", of_critic);
    const std::int64_t step = checkpointer.begin();
    if (!resume) {
      critic(generator(at::ones({4, 3}))).sum().backward();
      of_generator.step();
      of_critic.step();
      const at::NoGradGuard no_grad;
      critic->bias.add_(add);
      EXPECT_TRUE(checkpointer.save(1));
      EXPECT_TRUE(checkpointer.finish());
    }
    EXPECT_EQ(step, resume ? 1 : 0);
    return fmt::format("{} {} {}", critic->bias.item<float>(),
                       generator->weight.sum().item<float>(), of_critic.state().size());
  };
  const auto saved = on_ranks(2, [&](ProcessGroup& group) { return gan(group, false, 5); });
  const auto resumed = on_ranks(2, [&](ProcessGroup& group) { return gan(group, true, 0); });
  EXPECT_EQ(saved, resumed);
  EXPECT_TRUE(read_checkpoint(folder_.path()).weights.contains("generator.weight"));
}

TEST_F(AttachedPartsTest, an_optimizer_of_paceline_with_its_schedule) {
  const auto run = [&](ProcessGroup& group, bool resume) {
    torch::manual_seed(1);
    torch::nn::Linear net(3, 2);
    optim::AdamW optimizer(net->parameters());
    core_of(optimizer).shard(borrowed(group));
    optim::StepLR schedule(optimizer, 2);
    Checkpointer checkpointer(borrowed(group), {.folder = folder_.path(), .resume = resume});
    checkpointer.attach("model", net);
    checkpointer.attach("optimizer", optimizer);
    checkpointer.attach("schedule", schedule);
    std::int64_t step = checkpointer.begin();
    for (; step < (resume ? 6 : 3); ++step) {
      optimizer.zero_grad();
      net(at::ones({4, 3})).sum().backward();
      optimizer.step();
      schedule.step();
    }
    EXPECT_TRUE(checkpointer.save(step));
    EXPECT_TRUE(checkpointer.finish());
    EXPECT_EQ(schedule.num_steps(), step);
    EXPECT_NEAR(optimizer.learning_rate(), resume ? 1e-6 : 1e-4, 1e-12);
    return std::string();
  };
  on_ranks(2, [&](ProcessGroup& group) { return run(group, false); });
  on_ranks(3, [&](ProcessGroup& group) { return run(group, true); });
}

TEST_F(AttachedPartsTest, other_parts_than_the_saved_ones_are_an_error_that_lists_them) {
  train(2, 2, 2, false);
  const auto with = [&](const std::function<void(Checkpointer&, OwnLoop&)>& attach) -> Body {
    return [&, attach](ProcessGroup& group) {
      OwnLoop loop(group);
      Checkpointer checkpointer(loop.group, {.folder = folder_.path(), .resume = true});
      attach(checkpointer, loop);
      checkpointer.begin();
      return std::string();
    };
  };
  expect_error(ErrorCode::kInvalid, "\"best\": nothing here, number in the checkpoint",
               with([](Checkpointer& checkpointer, OwnLoop& loop) {
                 checkpointer.attach("model", loop.model);
                 checkpointer.attach("optimizer", loop.optimizer);
               }));
  expect_error(ErrorCode::kInvalid, "\"optimizer\": torch::optim::Adam here, torch::optim::SGD in",
               with([](Checkpointer& checkpointer, OwnLoop& loop) {
                 torch::optim::Adam adam(loop.model.parameters());
                 checkpointer.attach("model", loop.model);
                 checkpointer.attach("optimizer", adam);
                 checkpointer.begin();
               }));
  expect_error(ErrorCode::kInvalid, "attach() a module before begin()",
               with([](Checkpointer&, OwnLoop&) {}));
  expect_error(ErrorCode::kInvalid, "a part of the run has the name \"model\" already",
               with([](Checkpointer& checkpointer, OwnLoop& loop) {
                 checkpointer.attach("model", loop.model);
                 checkpointer.attach("model", loop.best);
               }));
}

// Otherwise the run is saved, and its restart ends with a SIGSEGV: only the optimizer may write the
// parameters.
TEST_F(AttachedPartsTest, a_model_of_fully_shard_needs_its_optimizer) {
  for (const int stage : {2, 3}) {
    expect_error(ErrorCode::kInvalid, "whose optimizer is not attached", [&](ProcessGroup& group) {
      torch::nn::Linear net(3, 2);
      optim::AdamW optimizer(net->parameters());
      auto model = fully_shard(net, borrowed(group), optimizer, {.stage = stage});
      Checkpointer checkpointer(borrowed(group), {.folder = folder_.path()});
      checkpointer.attach("model", model);
      checkpointer.begin();
      return std::string();
    });
  }
}

// A class whose functions throw an exception without saying where.
struct Brittle {
  bool throws_when_saved = false;

  optim::Metadata state() const {
    if (throws_when_saved) throw std::out_of_range("map::at");
    return {};
  }
  void set_state(const optim::Metadata& words) { words.at("left"); }
};

TEST_F(AttachedPartsTest, an_exception_of_a_part_is_an_error_with_its_name) {
  const auto run = [&](Brittle brittle, bool resume) -> Body {
    return [this, brittle, resume](ProcessGroup& group) mutable {
      OwnLoop loop(group);
      Checkpointer checkpointer(loop.group, {.folder = folder_.path(), .resume = resume});
      checkpointer.attach("model", loop.model);
      checkpointer.attach("brittle", brittle);
      checkpointer.begin();
      checkpointer.save(1);
      checkpointer.finish();
      return std::string();
    };
  };
  expect_error(ErrorCode::kInvalid, "\"brittle\": an exception while its state was saved: map::at",
               run({.throws_when_saved = true}, false));
  on_ranks(2, run({}, true));
  expect_error(ErrorCode::kInvalid,
               "\"brittle\": an exception while its state was restored: map::at", run({}, true));
}

// Otherwise the run is saved, and cannot be resumed by the program that saved it.
TEST_F(AttachedPartsTest, a_part_attached_after_begin_or_on_one_rank_only_is_refused) {
  const auto attach_when = [&](const std::function<bool(int rank, bool has_begun)>& wants) -> Body {
    return [&, wants](ProcessGroup& group) {
      OwnLoop loop(group);
      Checkpointer checkpointer(loop.group, {.folder = folder_.path()});
      checkpointer.attach("model", loop.model);
      double value = 0;
      if (wants(group.rank(), false)) checkpointer.attach("value", value);
      checkpointer.begin();
      if (wants(group.rank(), true)) checkpointer.attach("value", value);
      return std::string();
    };
  };
  expect_error(ErrorCode::kInvalid, "\"value\" is attached after begin()",
               attach_when([](int /*rank*/, bool has_begun) { return has_begun; }));
  expect_error(ErrorCode::kInvalid, "attach() the same parts on every rank",
               attach_when([](int rank, bool has_begun) { return rank == 1 && !has_begun; }));
}

}  // namespace
}  // namespace paceline::train
