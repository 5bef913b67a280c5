#include "examples/train_gpt/options.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/core/error.h"

#include "apps/usage_error.h"

namespace train_gpt {
namespace {

using paceline::MeshAxis;
using paceline::apps::UsageError;
using training_flags::FlagGroup;

constexpr const char* kExamples =
    "\nExamples:\n  train_gpt\n  paceline run --nproc-per-node 2 train_gpt --shard 3\n"
    "  paceline run --nproc-per-node 4 train_gpt --mesh dp=2,tp=2 --global-batch-size 32\n"
    "  train_gpt --text book.txt --tokenizer gpt2 --context 256 --lr-schedule cosine --warmup 100";

void declare_text_and_model(CLI::App& app, Options& options) {
  FlagGroup group(app, "Text and model");
  group.value("--text", options.text, "FILE", "Plain text; its last tenth is held out");
  group.value("--tokenizer", options.tokenizer, "NAME",
              "bytes, or a folder with GPT-2's vocab.json and merges.txt");
  group.count("--layers", options.layers, "Blocks of attention and MLP", 1, 10000);
  group.count("--width", options.width, "Features of each token", 1, 1000000);
  group.count("--heads", options.heads, "Heads of attention; they divide the width", 1, 1000000);
  group.count("--context", options.context, "Tokens that the model sees at most", 1, 1000000);
  group.number("--dropout", options.dropout, "Probability of dropping an activation", 0.99);
}

void declare_division(CLI::App& app, Options& options, std::string& mesh) {
  FlagGroup group(app, "Division among ranks");
  group.count(
      "--shard", options.shard,
      "Stage of fully_shard: 1 divides the optimizer's state, 2 gradients too, 3 parameters "
      "too; 0: none",
      0, 3);
  group.value("--mesh", mesh, "AXES",
              "dp=2,tp=2: replicas, and ranks that divide each layer [dp: all ranks]");
}

void declare_sample(CLI::App& app, Options& options) {
  FlagGroup group(app, "Sample");
  group.count("--sample", options.sample,
              "Tokens to generate at the end, as far as the context goes", 0);
  group.value("--prompt", options.prompt, "TEXT", "Text that the sample continues");
}

std::vector<MeshAxis> axes_in(const std::string& text) {
  if (text.empty()) return {};
  std::vector<MeshAxis> axes;
  try {
    axes = paceline::parse_mesh(text);
  } catch (const paceline::Error& error) {
    throw UsageError(fmt::format("--mesh {}: {}", text, error.what()));
  }
  for (const MeshAxis& axis : axes) {
    if (axis.name != "dp" && axis.name != "tp" && axis.name != "pp")
      throw UsageError(
          fmt::format("--mesh {}: unknown axis '{}'; choose dp or tp", text, axis.name));
    if (axis.name == "pp" && axis.size > 1) {
      throw UsageError(fmt::format(
          "--mesh {}: train_gpt does not run pipelines yet; use pp=1 (docs/pipeline.md has a loop "
          "for them)",
          text));
    }
  }
  const auto has = [&](const char* name) {
    return std::any_of(axes.begin(), axes.end(),
                       [&](const MeshAxis& axis) { return axis.name == name; });
  };
  if (!has("dp")) axes.insert(axes.begin(), MeshAxis{"dp", 1});
  if (!has("tp")) axes.push_back({"tp", 1});
  return axes;
}

int parts_of_model(const Options& options) {
  for (const MeshAxis& axis : options.mesh) {
    if (axis.name == "tp") return axis.size;
  }
  return 1;
}

void check_model(const Options& options) {
  if (options.width % options.heads != 0) {
    throw UsageError(
        fmt::format("--heads {}: they do not divide --width {}", options.heads, options.width));
  }
}

// Norms and compressed gradients of parts are not those of the whole model.
void check_division(const Options& options) {
  const auto& training = options.training;
  const std::string& hook = training.hook.name;
  if (options.shard >= 2 && hook != "none")
    throw UsageError(fmt::format("--hook {}: needs --shard 0 or 1", hook));
  if (parts_of_model(options) == 1) return;
  const std::string& optimizer = training.optimizer.name;
  if (optimizer == "lamb" || optimizer == "lars") {
    throw UsageError(
        fmt::format("--optimizer {}: takes norms of whole parameters, which --mesh tp divides; use "
                    "adamw or sgd",
                    optimizer));
  }
  if (hook != "none")
    throw UsageError(
        fmt::format("--hook {}: is not available where --mesh divides the model (tp)", hook));
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  options.training.run.epochs = 10;
  options.training.loading.batch_size = 8;
  std::string mesh;
  CLI::App app("Trains a GPT on a text with any number of ranks.", "train_gpt");
  app.footer(kExamples);
  declare_text_and_model(app, options);
  declare_division(app, options, mesh);
  declare_sample(app, options);
  training_flags::parse(argc, argv, app, options.training, [&] {
    check_model(options);
    options.mesh = axes_in(mesh);
    check_division(options);
  });
  return options;
}

}  // namespace train_gpt
