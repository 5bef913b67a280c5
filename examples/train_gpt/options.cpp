#include "examples/train_gpt/options.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/planning/schedules/named_schedules.h"

#include "apps/cli/option_value.h"

namespace train_gpt {
namespace {

using paceline::MeshAxis;
using paceline::apps::UsageError;
using training_flags::FlagGroup;

constexpr const char* kExamples =
    "\nExamples:\n  train_gpt\n  paceline run --nproc-per-node 2 train_gpt --shard 3\n"
    "  paceline run --nproc-per-node 4 train_gpt --mesh dp=2,tp=2 --global-batch-size 32\n"
    "  paceline run --nproc-per-node 2 train_gpt --mesh pp=2 --schedule zero-bubble "
    "--pipeline-picture step.svg\n"
    "  paceline run --hosts a,b train_gpt --outer 2 --outer-period 50 --outer-wire int8\n"
    "  train_gpt --text book.txt --tokenizer gpt2 --context 256 --lr-schedule cosine --warmup 100";

void declare_text_and_model(CLI::App& app, Options& options) {
  FlagGroup group(app, "Text and model");
  group.value("--text", options.text, "FILE",
              "Plain text, also as .gz; its last tenth is held out");
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
  group.flag("--shard-across-hosts", options.shard_across_hosts,
             "Keep a part of the parameters on each host, not a copy; with --shard 3");
  group.value("--mesh", mesh, "AXES",
              "dp=2,tp=2,pp=2: replicas, ranks that divide each layer, ranks that divide the "
              "layers [dp: all ranks]");
}

void declare_sample(CLI::App& app, Options& options) {
  FlagGroup group(app, "Sample");
  group.count("--sample", options.sample,
              "Tokens to generate at the end, as far as the context goes", 0);
  group.value("--prompt", options.prompt, "TEXT", "Text that the sample continues");
}

// The names in --help and in the error message for an unknown schedule.
std::vector<std::string> schedule_names() {
  const auto names = paceline::pipeline_schedule_names();
  std::vector<std::string> all(names.begin(), names.end());
  all.emplace_back("search");
  return all;
}

void declare_pipeline(CLI::App& app, PipelineFlags& flags) {
  FlagGroup group(app, "Pipeline (with pp in --mesh)");
  group
      .value("--schedule", flags.schedule, "NAME",
             "gpipe, 1f1b, interleaved-1f1b, zero-bubble, or search: the best stages and schedule "
             "found "
             "for the layers' measured costs")
      ->check(CLI::IsMember(schedule_names()));
  group.count("--micro-batches", flags.micro_batches,
              "Parts of each replica's batch [twice the stages]", 1, 100000);
  group.count("--stages-per-rank", flags.stages_per_rank,
              "Stages of each rank, for interleaved-1f1b, zero-bubble and search; 0: what is best "
              "for search, otherwise 1",
              0, 1000);
  group.number("--stage-memory", flags.memory_mib,
               "MiB of activations that a rank may keep, for --schedule search; 0: any number");
  group.value("--pipeline-picture", flags.picture, "FILE",
              "Draw the last step, planned beside measured: FILE.svg, or FILE.json for Perfetto");
}

void declare_outer(CLI::App& app, OuterFlags& flags) {
  FlagGroup group(app, "Learners over slow links (DiLoCo)");
  auto& step = flags.step;
  group.count("--outer", flags.learners,
              "Learners, each with an equal part of the ranks, that take outer steps together", 1,
              100000);
  group.count("--outer-period", step.period, "Steps between two outer steps", 1);
  group.count("--outer-fragments", step.fragments, "Parts that travel one after another", 1);
  group.count("--outer-delay", step.delay, "Steps during which a part travels", 0);
  group.count("--outer-warmup", step.warmup_steps,
              "First steps, after each of which the learners average their parameters", 0);
  group.value("--outer-wire", flags.wire, "NAME", "float32, bf16 or int8: fewer bytes")
      ->check(paceline::apps::is_one_of({"float32", "bf16", "int8"}));
  group.number("--outer-lr", step.outer_lr, "Learning rate of the outer steps");
  group.number("--outer-momentum", step.outer_momentum, "Nesterov momentum of the outer steps",
               0.9999);
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
          fmt::format("--mesh {}: unknown axis '{}'; choose dp, tp or pp", text, axis.name));
  }
  const auto has = [&](const char* name) {
    return std::any_of(axes.begin(), axes.end(),
                       [&](const MeshAxis& axis) { return axis.name == name; });
  };
  for (const char* name : {"dp", "pp"}) {
    if (!has(name)) axes.insert(axes.begin(), MeshAxis{name, 1});
  }
  if (!has("tp")) axes.push_back({"tp", 1});
  return axes;
}

void check_model(const Options& options) {
  if (options.width % options.heads != 0) {
    throw UsageError(
        fmt::format("--heads {}: they do not divide --width {}", options.heads, options.width));
  }
}

void check_division(const Options& options) {
  if (options.shard_across_hosts && options.shard != 3)
    throw UsageError(
        "--shard-across-hosts: needs --shard 3, which has one copy of the parameters a host");
}

void check_outer(const Options& options) {
  if (options.outer.learners == 1) return;
  if (options.axis("pp") > 1) throw UsageError("--outer: not available with a pipeline (pp)");
  const auto& step = options.outer.step;
  if (step.fragments > step.period || step.delay >= step.period / step.fragments) {
    throw UsageError(
        fmt::format("--outer-delay {}: must be below period / fragments, so that a part arrives "
                    "before the next one leaves (--outer-fragments {}, --outer-period {})",
                    step.delay, step.fragments, step.period));
  }
}

void check_hook(const Options& options) {
  const std::string& hook = options.training.hook.name;
  if (hook == "none") return;
  if (options.shard >= 2) throw UsageError(fmt::format("--hook {}: needs --shard 0 or 1", hook));
  if (options.axis("tp") > 1 || options.axis("pp") > 1) {
    throw UsageError(
        fmt::format("--hook {}: is not available where --mesh divides the model (tp, pp)", hook));
  }
}

void check_pipeline(const Options& options) {
  const auto& [schedule, micro_batches, stages_per_rank, memory_mib, picture] = options.pipeline;
  if (options.axis("pp") == 1) {
    if (micro_batches > 0 || stages_per_rank > 0 || memory_mib > 0 || !picture.empty()) {
      throw UsageError(
          "--micro-batches, --stages-per-rank, --stage-memory and --pipeline-picture: need a "
          "pipeline; add pp=2 or more to --mesh");
    }
    return;
  }
  if (memory_mib > 0 && schedule != "search") {
    throw UsageError(fmt::format(
        "--stage-memory: --schedule {} cannot limit memory; use --schedule search", schedule));
  }
  const auto& loading = options.training.loading;
  const int stages = options.least_stages(), count = options.micro_batches();
  if (options.layers < stages) {
    throw UsageError(
        fmt::format("--layers {}: fewer than the {} stages of --mesh and "
                    "--stages-per-rank",
                    options.layers, stages));
  }
  if (count < stages) {
    throw UsageError(
        fmt::format("--micro-batches {}: fewer than the {} stages, so ranks would "
                    "never all have work; use {} or more",
                    count, stages, stages));
  }
  if (loading.micro_batch_size > 0)
    throw UsageError("--micro-batch-size: with a pipeline use --micro-batches");
  if (loading.logical_shards > 0)
    throw UsageError("--logical-shards: not available with a pipeline (pp)");
  const std::int64_t share = loading.global_batch_size > 0
                                 ? loading.global_batch_size / options.axis("dp")
                                 : loading.batch_size;
  if (share < count) {
    throw UsageError(
        fmt::format("--micro-batches {}: a replica has {} sequences in a step; use a larger "
                    "--global-batch-size or --batch-size, or fewer micro-batches",
                    count, share));
  }
  if (schedule == "1f1b" && stages_per_rank > 1) {
    throw UsageError(fmt::format(
        "--stages-per-rank {}: --schedule 1f1b takes one; use interleaved-1f1b", stages_per_rank));
  }
  if (!picture.empty() && !picture.ends_with(".svg") && !picture.ends_with(".json"))
    throw UsageError(
        fmt::format("--pipeline-picture {}: the name must end with .svg or .json", picture));
}

}  // namespace

int Options::axis(const std::string& name) const {
  for (const MeshAxis& one : mesh) {
    if (one.name == name) return one.size;
  }
  return 1;
}

int Options::micro_batches() const {
  return pipeline.micro_batches > 0 ? pipeline.micro_batches : 2 * least_stages();
}

int Options::least_stages() const { return axis("pp") * std::max(1, pipeline.stages_per_rank); }

Options parse_options(int argc, char** argv) {
  Options options;
  options.training.run.epochs = 1;
  options.training.loading.batch_size = 8;
  std::string mesh;
  CLI::App app("Trains a GPT on a text with any number of ranks.", "train_gpt");
  app.footer(kExamples);
  declare_text_and_model(app, options);
  declare_division(app, options, mesh);
  declare_pipeline(app, options.pipeline);
  declare_outer(app, options.outer);
  declare_sample(app, options);
  training_flags::parse(argc, argv, app, options.training, [&] {
    check_model(options);
    options.mesh = axes_in(mesh);
    check_division(options);
    check_outer(options);
    check_hook(options);
    check_pipeline(options);
    const std::string& wire = options.outer.wire;
    options.outer.step.wire = wire == "int8"   ? at::kChar
                              : wire == "bf16" ? at::kBFloat16
                                               : at::kFloat;
  });
  return options;
}

}  // namespace train_gpt
