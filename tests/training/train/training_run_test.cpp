#include "paceline/training/train/training_run.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/streamed_dataset.h"
#include "paceline/training/train/checkpoints/weights_file.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_run_core.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/train/small_run.h"

namespace paceline::train {
namespace {

using testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// SmallRun's parts as a TrainingRun takes them. The loss of an evaluation is the number of
// evaluations so far.
struct Parts {
  explicit Parts(std::shared_ptr<ProcessGroup> process_group) : run(std::move(process_group)) {}

  Training training() {
    return {.module = run.model.module(),
            .optimizer = run.optimizer,
            .gradients = backward_passes(
                [this](const data::Batch& batch) {
                  return torch::nn::functional::cross_entropy(run.model.forward(batch.data),
                                                              batch.target);
                },
                run.model),
            .data = data,
            .make_loader =
                [this](std::uint64_t seed) {
                  seeds.push_back(seed);
                  const data::DistributedSampler sampler(50, run.group->world_size(),
                                                         run.group->rank(), {.seed = seed});
                  return std::make_unique<data::DataLoader>(
                      std::make_shared<data::ImageSamples>(small_dataset()), sampler,
                      data::DataLoaderOptions{.batch_size = 5});
                },
            .test =
                [this] {
                  EXPECT_FALSE(run.model.is_training());
                  ++num_tests;
                  return TestResult{.loss = static_cast<double>(num_tests),
                                    .summary = "looked at",
                                    .values = {{"score", 0.5}},
                                    .rows = {{"score", "one half"}}};
                }};
  }

  SmallRun run;
  std::string data = "made up (50 images)";
  std::vector<std::uint64_t> seeds;
  int num_tests = 0;
};

// Runs `body` on one rank.
void with_one(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  harness::run_ranks_ok(1, [&](ProcessGroup& group) { body({&group, [](auto*) {}}); });
}

TEST(TrainingRun, trains_evaluates_each_epoch_and_writes_what_is_asked_for) {
  const FreshDirectory folder;
  const std::string metrics = folder.file("metrics"), weights = folder.file("net.safetensors");
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    Parts parts({&group, [](auto*) {}});
    TrainingRun run(parts.run.group, parts.training(),
                    {.epochs = 2, .metrics = metrics, .weights = weights});
    EXPECT_EQ(run.train(), 0);
    EXPECT_EQ(run.state().step, 10);
    EXPECT_EQ(run.result().loss, 2);
    EXPECT_EQ(parts.num_tests, 2);
    EXPECT_TRUE(parts.run.model.is_training());
    if (group.rank() != 0) return;
    for (const auto& [name, tensor] : read_weights(weights))
      EXPECT_TRUE(torch::equal(tensor, weights_of(parts.run.model.module()).at(name))) << name;
  });
  const std::string text = text_of(metrics);
  EXPECT_THAT(text, HasSubstr(R"({"event":"epoch","epoch":2,"score":0.5,"test_loss":2.0})"));
  EXPECT_THAT(text, HasSubstr(R"({"event":"end","score":0.5,"seconds":)"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10 + 2 + 1);
}

TEST(TrainingRun, results_that_differ_between_the_ranks_are_a_warning) {
  testing::internal::CaptureStderr();
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    Parts parts({&group, [](auto*) {}});
    Training training = parts.training();
    training.test = [&] { return TestResult{.loss = 1.5 + group.rank()}; };
    TrainingRun run(parts.run.group, training, {.epochs = 2});
    EXPECT_EQ(run.train(), 0);
  });
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string text = "Training::test returned loss 1.5 on rank 0 and loss 2.5 on rank 1";
  const std::size_t first = log.find(text);
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(text, first + 1), std::string::npos) << log;
}

TEST(TrainingRun, a_test_that_communicates_on_one_rank_only_is_named) {
  const auto results = harness::run_ranks(2, [&](ProcessGroup& group) {
    Parts parts({&group, [](auto*) {}});
    Training training = parts.training();
    training.test = [&] {
      if (group.rank() == 0) all_reduce_value(group, 1.0);
      return TestResult{};
    };
    TrainingRun(parts.run.group, training, {.epochs = 1}).train();
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(),
                HasSubstr("so every rank must call Training::test; if every rank does, "
                          "only some ranks called all_reduce before it"));
  }
}

TEST(TrainingRun, a_label_that_the_model_lacks_is_an_error_with_its_samples) {
  with_one([](std::shared_ptr<ProcessGroup> group) {
    Parts parts(group);
    Training training = parts.training();
    training.gradients = backward_passes(
        [&](const data::Batch& batch) {
          return torch::nn::functional::cross_entropy(parts.run.model.forward(batch.data),
                                                      batch.target + 3);
        },
        parts.run.model);
    TrainingRun run(group, training, {.epochs = 1});
    try {
      run.train();
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      const std::string what = error.what_without_backtrace();
      EXPECT_THAT(what, HasSubstr("out of bounds"));
      EXPECT_THAT(what, testing::ContainsRegex("step 1, samples [0-9, ]+ of "));
    }
  });
}

TEST(BestValues, are_the_lowest_of_each_file_and_outlive_a_restart) {
  BestValues best;
  EXPECT_EQ(best.last_epoch(), 0);
  EXPECT_FALSE(best.take("a", std::nan(""), 1));
  EXPECT_TRUE(best.take("a", 3, 1));
  EXPECT_FALSE(best.take("a", 3, 2));
  EXPECT_TRUE(best.take("b c", 5, 3));
  BestValues resumed;
  resumed.set_state(best.state());
  EXPECT_EQ(resumed.last_epoch(), 3);
  EXPECT_FALSE(resumed.take("a", 3.5, 4));
  EXPECT_TRUE(resumed.take("a", 2.5, 5));
  EXPECT_EQ(resumed.last_epoch(), 5);
}

// Trains until the loss, which the test makes up, has not improved for two epochs. The run is
// stopped after the second epoch and continued, and knows its best value.
// A suite of its own, so a process of its own: later versions of LibTorch refuse a backward pass in
// a process that was forked after one.
TEST(TrainingRunOfForkedRanks, keeps_the_best_weights_and_stops_early_also_after_a_restart) {
  const FreshDirectory folder;
  const std::string best = folder.file("best.safetensors");
  const std::vector<double> losses{4, 2, 3, 5, 1};
  at::set_num_threads(1);  // the ranks are forked, which LibTorch's threads would not survive
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& group) {
    std::map<std::string, at::Tensor> at_best;
    for (const bool resumes : {false, true}) {
      Parts parts({&group, [](auto*) {}});
      Training training = parts.training();
      double own = 0;
      training.states = {state_of("own", own)};
      training.test = [&] { return TestResult{.loss = -1, .summary = "made up"}; };
      training.after_epoch = [&](const EpochReport& epoch) {
        const double loss = losses.at(static_cast<std::size_t>(epoch.state.epoch) - 1);
        EXPECT_EQ(epoch.test.loss, -1);
        own += loss;
        // The same file in another spelling: the best value is kept for its name.
        const std::string path = resumes ? folder.file("./best.safetensors") : best;
        if (epoch.save_if_best(path, group.rank() == 0 ? loss : 100)) {
          EXPECT_EQ(epoch.epochs_since_best(), 0);
          for (const auto& [name, tensor] : weights_of(parts.run.model.module()))
            at_best[name] = tensor.detach().clone();
        }
        if (epoch.epochs_since_best() >= 2) epoch.stop();
      };
      TrainingRun run(parts.run.group, training,
                      {.epochs = resumes ? 9 : 2,
                       .checkpoints = {.folder = folder.file("run"), .resume = resumes}});
      EXPECT_EQ(run.train(), 0);
      EXPECT_EQ(run.state().epoch, resumes ? 4 : 2) << "2 was the best, 3 and 5 were not";
      EXPECT_EQ(own, resumes ? 14 : 6);
    }
    for (const auto& [name, tensor] : read_weights(best))
      EXPECT_TRUE(torch::equal(tensor, at_best.at(name))) << name;
    return std::string("all ends were as expected");
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.report;
    EXPECT_EQ(result.report, "all ends were as expected");
  }
}

TEST(TrainingRun, a_forgotten_part_is_an_error_before_the_first_step) {
  with_one([](const auto& group) {
    Parts parts(group);
    const auto expect_refused = [&](const char* words,
                                    const std::function<void(Training&)>& forget) {
      Training training = parts.training();
      forget(training);
      expect_error(ErrorCode::kInvalid, {words}, [&] { TrainingRun(group, training, {}).train(); });
    };
    expect_refused("Training::gradients is not set", [](Training& t) { t.gradients = nullptr; });
    expect_refused("Training::make_loader is not set",
                   [](Training& t) { t.make_loader = nullptr; });
    expect_refused("Training::make_loader returned no loader", [](Training& t) {
      t.make_loader = [](std::uint64_t) { return std::unique_ptr<data::DataLoader>(); };
    });
    expect_refused("Training::test is not set", [](Training& t) { t.test = nullptr; });
  });
}

TEST(TrainingRun, best_files_of_one_name_in_two_folders_are_an_error) {
  with_one([](const auto& group) {
    Parts parts(group);
    Training training = parts.training();
    const FreshDirectory folder;
    training.after_epoch = [&](const EpochReport& epoch) {
      EXPECT_TRUE(epoch.save_if_best(folder.file("best.safetensors"), 1));
      expect_error(ErrorCode::kInvalid, {"have the same file name", "give them different names"},
                   [&] { epoch.save_if_best("other/best.safetensors", 1); });
    };
    EXPECT_EQ(TrainingRun(group, training, {.epochs = 1}).train(), 0);
  });
}

TEST(TrainingRun, an_end_within_an_epoch_is_evaluated_once) {
  with_one([](const auto& group) {
    Parts parts(group);
    TrainingRun run(group, parts.training(), {.epochs = 5, .max_steps = 3});
    EXPECT_EQ(run.train(), 0);
    EXPECT_EQ(run.state().step, 3);
    EXPECT_EQ(parts.num_tests, 1);
  });
}

TEST(TrainingRun, a_stopped_run_goes_on_with_the_same_bits) {
  const FreshDirectory folder;
  const std::string stop = folder.file("stop");
  at::Tensor straight;
  with_one([&](const auto& group) {
    Parts parts(group);
    TrainingRun run(group, parts.training(), {.epochs = 2, .step = {.ema = 0.9}});
    EXPECT_EQ(run.train(), 0);
    straight = parts.run.flat();
  });
  folder.write("stop", "");
  TrainingRunOptions options{.epochs = 2,
                             .step = {.ema = 0.9},
                             .checkpoints = {.folder = folder.file("run"), .stop_file = stop}};
  with_one([&](const auto& group) {
    Parts parts(group);
    TrainingRun run(group, parts.training(), options);
    EXPECT_EQ(run.train(), kStoppedAsAgreed);
    EXPECT_EQ(run.state().step, 1);
  });
  options.checkpoints.resume = true;
  with_one([&](const auto& group) {
    Parts parts(group);
    TrainingRun run(group, parts.training(), options);
    EXPECT_EQ(run.train(), 0);
    EXPECT_EQ(run.state().step, 20);
    EXPECT_TRUE(torch::equal(parts.run.flat(), straight));
  });
}

TEST(TrainingRun, a_stream_goes_on_in_the_middle_of_an_epoch_with_the_same_bits) {
  const FreshDirectory folder;
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += fmt::format("{}\n", i);
  const auto stream = std::make_shared<data::LineFiles>(
      std::vector{folder.write("lines", lines)},
      [images = small_dataset()](const data::StreamedDataset::Record& line,
                                 std::int64_t /*epoch*/) {
        const std::int64_t i = std::stoll(line.bytes);
        return data::Sample{images.images[i].to(at::kFloat) / 255, images.labels[i]};
      },
      data::LineFilesOptions{.shuffle_window = 16});
  const auto run_to = [&](std::int64_t max_steps, const CheckpointOptions& checkpoints) {
    at::Tensor weights;
    with_one([&](const auto& group) {
      Parts parts(group);
      Training training = parts.training();
      training.make_loader = [&](std::uint64_t) {
        return std::make_unique<data::DataLoader>(stream, 1, 0,
                                                  data::DataLoaderOptions{.batch_size = 7});
      };
      TrainingRun run(group, training,
                      {.epochs = 3, .max_steps = max_steps, .checkpoints = checkpoints});
      EXPECT_EQ(run.train(), 0);
      EXPECT_EQ(run.state().step, max_steps);
      weights = parts.run.flat();
    });
    return weights;
  };
  const CheckpointOptions first{.folder = folder.file("run")};
  run_to(10, first);  // 8 steps are an epoch
  const auto resumed = run_to(20, {.folder = first.folder, .resume = true});
  EXPECT_TRUE(torch::equal(resumed, run_to(20, {})));
  with_one([&](const auto& group) {
    Parts parts(group);
    Training training = parts.training();
    training.make_loader = [&](std::uint64_t) {
      return std::make_unique<data::DataLoader>(stream, 1, 0, data::DataLoaderOptions{});
    };
    expect_error(ErrorCode::kInvalid, {folder.file("lines"), "set max_steps"},
                 [&] { TrainingRun(group, training, {.epochs = 2}); });
  });
}

TEST(TrainingRun, a_continued_run_has_its_own_seed_data_and_learning_rate) {
  const FreshDirectory folder;
  TrainingRunOptions options{
      .epochs = 9, .max_steps = 2, .seed = 3, .checkpoints = {.folder = folder.file("run")}};
  with_one([&](const auto& group) {
    Parts parts(group);
    EXPECT_EQ(TrainingRun(group, parts.training(), options).train(), 0);
  });
  options.checkpoints.resume = true;
  options.seed = 4;
  with_one([&](const auto& group) {
    Parts parts(group);
    expect_error(ErrorCode::kInvalid, {"--seed 4: the run in", "has the seed 3"},
                 [&] { TrainingRun(group, parts.training(), options); });
  });
  options.seed.reset();
  with_one([&](const auto& group) {
    Parts parts(group);
    parts.data = "other images";
    expect_error(ErrorCode::kInvalid,
                 {"trains on made up (50 images), this program was given other images"},
                 [&] { TrainingRun(group, parts.training(), options); });
  });
  options.learning_rate = 0.5;
  with_one([&](const auto& group) {
    Parts parts(group);
    const TrainingRun run(group, parts.training(), options);
    EXPECT_EQ(run.state().step, 2);
    EXPECT_EQ(parts.seeds, (std::vector<std::uint64_t>{0, 3}));
    EXPECT_EQ(parts.run.optimizer.learning_rate(), 0.5);
  });
}

TEST(TrainingRun, a_file_that_cannot_be_written_is_an_error_on_every_rank_before_the_first_step) {
  const FreshDirectory folder;
  for (const bool is_metrics : {true, false}) {
    const std::string missing = folder.file("missing/file");
    for (const auto& result : harness::run_ranks(2, [&](ProcessGroup& group) {
           Parts parts({&group, [](auto*) {}});
           TrainingRunOptions options;
           (is_metrics ? options.metrics : options.weights) = missing;
           TrainingRun(parts.run.group, parts.training(), options);
         })) {
      ASSERT_TRUE(result.error);
      EXPECT_EQ(result.error->code(), ErrorCode::kSystem);
      EXPECT_THAT(result.error->what(), HasSubstr(missing));
    }
  }
}

TEST(TrainingRun, a_divided_model_counts_each_sample_once_and_refuses_what_needs_the_whole) {
  const FreshDirectory folder;
  const std::string metrics = folder.file("metrics");
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    Parts parts({&group, [](auto*) {}});
    Training training = parts.training();
    training.replicas = group.split(group.rank(), 0);  // a group with only this rank
    training.unit = {.name = "tokens", .per_sample = 3};
    const auto refused = [&](const char* what, const TrainingRunOptions& options) {
      expect_error(ErrorCode::kUnsupported, {what, "divided among ranks"},
                   [&] { TrainingRun(parts.run.group, training, options); });
    };
    refused("--clip-norm", {.step = {.clip_norm = 1}});
    refused("loss scaling", {.step = {.scales_loss = true}});
    // An optimizer that knows the parts of the model clips by the norm of the whole model.
    training.optimizer.get().set_model_parts({.model = parts.run.group, .layers = nullptr});
    TrainingRun run(parts.run.group, training,
                    {.epochs = 1, .step = {.clip_norm = 1}, .metrics = metrics});
    EXPECT_EQ(run.train(), 0);
  });
  const std::string text = text_of(metrics);
  const auto number = [&](const std::string& name) {
    return std::stod(text.substr(text.find('"' + name + "\":") + name.size() + 3));
  };
  EXPECT_NEAR(number("seconds") * number("samples_per_second"), 25, 1e-6);  // half of 50 samples
  EXPECT_NEAR(number("tokens_per_second") / number("samples_per_second"), 3, 1e-9);
}

TEST(TrainingStep, a_schedule_that_is_unknown_or_too_short_is_refused) {
  const std::vector<at::Tensor> parameters{torch::zeros({2}, torch::requires_grad())};
  const auto optimizer = make_optimizer({.name = "lamb"}, parameters);
  expect_error(ErrorCode::kInvalid, {"unknown schedule 'fast'", "one-cycle"},
               [&] { TrainingStep({.schedule = "fast"}, *optimizer, 10); });
  expect_error(ErrorCode::kInvalid, {"--warmup 10: the schedule has 10 steps"},
               [&] { TrainingStep({.schedule = "cosine", .warmup_steps = 10}, *optimizer, 10); });
}

TEST(NamedChoices, make_what_they_name_and_refuse_other_names) {
  const std::vector<at::Tensor> parameters{torch::zeros({2}, torch::requires_grad())};
  for (const std::string name : {"adam", "adamw", "sgd", "lamb", "lars"})
    EXPECT_EQ(make_optimizer({.name = name, .lr = 0.25}, parameters)->name(), name);
  expect_error(ErrorCode::kInvalid, {"unknown optimizer 'rms'", "lars"},
               [&] { make_optimizer({.name = "rms"}, parameters); });
  EXPECT_EQ(make_hook({}), nullptr);
  for (const std::string name : {"bf16", "fp16", "powersgd", "topk"})
    EXPECT_NE(make_hook({.name = name}), nullptr) << name;
  expect_error(ErrorCode::kInvalid, {"unknown communication hook 'zip'"},
               [] { make_hook({.name = "zip"}); });
  EXPECT_EQ(precision_of("bf16").parameters, at::kBFloat16);
  EXPECT_TRUE(precision_of("autocast-fp16").scales_loss);
  expect_error(ErrorCode::kInvalid, {"unknown precision 'int8'"}, [] { precision_of("int8"); });
}

TEST(RequireLabels, name_the_sample_whose_class_the_model_lacks) {
  data::Batch batch;
  batch.target = torch::tensor({0, 2, 3}, torch::kLong);
  batch.indices = {7, 8, 9};
  require_labels(batch, 4, "digits");
  expect_error(ErrorCode::kInvalid,
               {"sample 9 of digits has the label 3, and the model has 3 classes"},
               [&] { require_labels(batch, 3, "digits"); });
  batch.target = torch::rand({3, 9});
  require_labels(batch, 4, "digits");
}

TEST(Evaluate, top_5_counts_labels_among_the_five_largest_logits) {
  harness::run_ranks_ok(1, [](ProcessGroup& group) {
    const auto dataset = std::make_shared<data::TensorDataset>(
        "rows",
        std::vector<at::Tensor>{torch::zeros({4, 1}), torch::tensor({9, 5, 4, 0}, torch::kLong)});
    data::DataLoader loader(dataset, data::evaluation_indices(4, 1, 0), {.batch_size = 3});
    const auto result = evaluate(group, loader, [](const at::Tensor& rows) {
      return torch::arange(10, torch::kFloat).expand({rows.size(0), 10});
    });
    EXPECT_DOUBLE_EQ(result.accuracy, 0.25);
    EXPECT_DOUBLE_EQ(result.top5_accuracy, 0.5);
    EXPECT_THAT(result.test_result().summary, HasSubstr("test accuracy 25.00%"));
    EXPECT_THAT(table_of(result.test_result()), HasSubstr("top-5 accuracy          50.00%\n"));
  });
}

TEST(Evaluate, refuses_labels_and_outputs_of_another_form) {
  harness::run_ranks_ok(1, [](ProcessGroup& group) {
    const auto evaluate_with = [&](const at::Tensor& labels, const at::Tensor& output) {
      const auto dataset = std::make_shared<data::TensorDataset>(
          "rows", std::vector<at::Tensor>{torch::zeros({4, 1}), labels});
      data::DataLoader loader(dataset, data::evaluation_indices(4, 1, 0), {.batch_size = 4});
      evaluate(group, loader, [&](const at::Tensor& /*rows*/) { return output; });
    };
    expect_error(ErrorCode::kInvalid, {"the labels of rows are Float", "to(torch::kLong)"}, [&] {
      evaluate_with(torch::zeros({4}), torch::zeros({4, 3}));
    });
    expect_error(ErrorCode::kInvalid, {"a tensor of shape [4], not [B, classes]"},
                 [&] { evaluate_with(torch::zeros({4}, torch::kLong), torch::zeros({4})); });
  });
}

TEST(EpochReport, save_if_best_on_one_rank_only_is_named_on_every_rank) {
  const auto results = harness::run_ranks(2, [](ProcessGroup& group) {
    BestValues best;
    const TrainingState state;
    const TestResult test;
    const EpochReport epoch(group, state, test, best, [](const std::string& /*file*/) {});
    if (group.rank() == 0) epoch.save_if_best("best.safetensors", 1);
    group.barrier();
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(),
                HasSubstr("so every rank must call train::EpochReport::save_if_best()"));
  }
}

TEST(EvaluateText, is_the_mean_over_all_tokens_of_all_ranks_whatever_the_batches) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    const at::Tensor rows = torch::arange(10, torch::kLong).view({5, 2});
    const auto dataset =
        std::make_shared<data::TensorDataset>("rows", std::vector<at::Tensor>{rows, rows});
    data::DataLoader loader(dataset, data::evaluation_indices(5, 2, group.rank()),
                            {.batch_size = 2});
    const auto found =
        evaluate_text(group, loader, CountedLoss::over_all_targets([](const data::Batch& batch) {
                        return batch.target.to(torch::kDouble).mean();
                      }));
    EXPECT_DOUBLE_EQ(found.loss, 4.5);
    EXPECT_EQ(found.tokens, 10);
    EXPECT_DOUBLE_EQ(found.perplexity(), std::exp(4.5));
    EXPECT_EQ(found.test_result().summary, "test perplexity 90.02, loss 4.5000");
    data::DataLoader nothing(dataset, std::vector<std::int64_t>{}, {});
    expect_error(ErrorCode::kInvalid, {"evaluate_text", "no rank has a token that counts"},
                 [&] { evaluate_text(group, nothing, {}); });
  });
}

TEST(Progress, time_is_told_as_a_clock_does) {
  EXPECT_EQ(clock_text(0), "0:00");
  EXPECT_EQ(clock_text(123), "2:03");
  EXPECT_EQ(clock_text(3723), "1:02:03");
}

}  // namespace
}  // namespace paceline::train
