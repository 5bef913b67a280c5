#include "paceline/training/pipeline/pipeline.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/training/pipeline/backward_pass.h"
#include "paceline/training/pipeline/stage_links.h"
#include "paceline/training/tensor/current_error.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

using Tensors = PipelineStage::Tensors;
using Direction = StageLinks::Direction;
using pipeline::Action;

// The code of errors that wrap an exception of the program's own function. A program that ends with
// such an error has the same exit code as one that ends with the exception itself.
constexpr ErrorCode kProgramError = ErrorCode::kSystem;

Tensors trainable(const Tensors& parameters) {
  Tensors result;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

// Returns the number of in-place changes of each tensor; 0 for tensors that do not count them.
std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors)
    versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  return versions;
}

// Throws Error(kInvalid) if a tensor was changed in place after versions_of() returned `versions`.
// `what` describes the tensors for the message.
void require_unchanged(const std::string& what, const Tensors& tensors,
                       const std::vector<std::int64_t>& versions) {
  const auto now = versions_of(tensors);
  const auto changed = std::mismatch(now.begin(), now.end(), versions.begin()).first - now.begin();
  check(changed == std::ssize(now),
        "{} {} was changed in place, but another rank may be using it; change a clone() of it",
        what, changed);
}

// Returns the one device of all parameters of this rank's stages; the CPU if there are none.
c10::Device device_of(const ProcessGroup& group, const std::vector<PipelineStage>& stages) {
  std::optional<c10::Device> device;
  for (const PipelineStage& stage : stages) {
    for (const at::Tensor& parameter : stage.parameters) {
      if (!parameter.defined()) continue;
      if (!device) device = parameter.device();
      check(
          parameter.device() == *device,
          "{}: its stages have parameters on {} and on {}; move all stages of a rank to one device",
          group.self(), device->str(), parameter.device().str());
    }
  }
  return device.value_or(c10::kCPU);
}

}  // namespace

// The progress of one step on this rank: the rank's stages, the micro-batches in flight, and the
// result.
struct Pipeline::Run {
  // A micro-batch between its forward pass and the end of its backward pass.
  struct InFlight {
    Tensors inputs, outputs;
    std::unique_ptr<BackwardPass> pass;
  };
  // A stage of this rank, and the data of its micro-batches in flight.
  struct Stage {
    explicit Stage(const PipelineStage& given)
        : function(given), parameters(trainable(given.parameters)), gradients(parameters) {}
    // Updates `parameters`, because some may have begun or ceased to require a gradient.
    void follow_requirements() {
      Tensors now = trainable(function.parameters);
      if (std::ranges::equal(now, parameters, std::ranges::equal_to(), identity, identity)) return;
      parameters = now;
      gradients = GradientOrder(std::move(now));
      is_checked = false;
    }
    static const void* identity(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

    const PipelineStage& function;
    Tensors parameters;
    GradientOrder gradients;
    std::map<int, InFlight> in_flight;  // [micro-batch]
    bool is_checked = false;            // whether require_listed() has been called
  };

  Run(const std::shared_ptr<ProcessGroup>& of, const PipelineSchedule& planned,
      const std::vector<PipelineStage>& stages)
      : group(*of), schedule(planned), links(of, planned, device_of(*of, stages)) {
    for (const PipelineStage& stage : stages) own.emplace(stage.index, stage);
  }

  bool is_last(int stage) const { return stage + 1 == schedule.num_stages(); }

  void begin(const std::vector<Tensors>& given) {
    if (own.count(0) > 0) {
      check(given.size() == static_cast<std::size_t>(schedule.num_micro_batches),
            "{}: {} micro-batches for a schedule of {}", group.self(), given.size(),
            schedule.num_micro_batches);
    }
    result = {};
    if (own.count(schedule.num_stages() - 1) > 0)
      result.losses.resize(static_cast<std::size_t>(schedule.num_micro_batches));
    for (auto& [index, stage] : own) {
      stage.in_flight.clear();
      stage.follow_requirements();
      stage.gradients.begin_step();
    }
  }

  // Runs one action of the schedule.
  void carry_out(const Action& action, const std::vector<Tensors>& given, const Loss& loss) {
    Stage& stage = own.at(action.stage);
    under_way = action;
    switch (action.kind) {
      case Action::Kind::kForward:
        return forward(stage, action, given, loss);
      case Action::Kind::kWeightGradient:
        return weight_gradient(stage, action);
      case Action::Kind::kBackward:
      case Action::Kind::kInputGradient:
        return backward(stage, action);
    }
  }

  void forward(Stage& stage, const Action& action, const std::vector<Tensors>& given,
               const Loss& loss) {
    const auto [kind, index, micro_batch] = action;
    InFlight& item = stage.in_flight[micro_batch];
    item.inputs = inputs_of(action, given);
    begin_work();
    Tensors leaves;
    for (at::Tensor& input : item.inputs) {
      input = input.detach();
      if (index > 0 && carries_gradient(input)) leaves.push_back(input.requires_grad_());
    }
    item.outputs = run_stage(stage.function, action, item.inputs);
    if (is_last(index))
      item.outputs = {loss_of(action, item.outputs, loss) / schedule.num_micro_batches};
    require_gradient(stage, action, item.outputs, leaves);
    const Tensors roots = gradient_carriers(item.outputs);
    item.pass = std::make_unique<BackwardPass>(roots, leaves, stage.parameters);
    if (!std::exchange(stage.is_checked, true)) require_listed(*item.pass, action);
    if (is_last(index)) return;
    Tensors sent;
    for (const at::Tensor& output : item.outputs) sent.push_back(output.detach());
    links.send(index, micro_batch, Direction::kForward, sent);
  }

  // Throws Error(kInvalid) if the outputs, the loss for the last stage, do not depend on anything
  // that requires a gradient, although the stage has parameters or inputs that do: the stage would
  // not be trained.
  void require_gradient(const Stage& stage, const Action& action, const Tensors& outputs,
                        const Tensors& leaves) const {
    const auto requires_grad = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
    if (std::ranges::any_of(outputs, requires_grad)) return;
    check(leaves.empty() && std::ranges::none_of(stage.parameters, requires_grad),
          "{}: {}: {} does not depend on any parameter or input that requires a gradient, so stage "
          "{} of {} would not be trained; was it detached (detach(), item(), NoGradGuard)?",
          group.self(), to_string(action), is_last(action.stage) ? "the loss" : "the output",
          action.stage, schedule.num_stages());
  }

  // Throws Error(kInvalid) if the pass needs a gradient of a parameter that the stage does not
  // list.
  void require_listed(const BackwardPass& pass, const Action& action) const {
    const at::Tensor missing = pass.other_leaf();
    check(!missing.defined(),
          "{}: {}: stage {} of {} uses a parameter {} that requires a gradient but is not in "
          "PipelineStage::parameters, so the parameter would get no gradient: list the parameter, "
          "or use make_stage(index, module), which lists all parameters of a module",
          group.self(), to_string(action), action.stage, schedule.num_stages(),
          shapes_of({missing}));
  }

  // Runs a forward pass without a backward pass.
  void evaluate(const Action& action, const std::vector<Tensors>& given, const Loss& loss) {
    under_way = action;
    const Tensors inputs = inputs_of(action, given);
    const Tensors outputs = run_stage(own.at(action.stage).function, action, inputs);
    if (is_last(action.stage)) {
      loss_of(action, outputs, loss);
    } else {
      links.send(action.stage, action.micro_batch, Direction::kForward, outputs);
    }
  }

  Tensors inputs_of(const Action& action, const std::vector<Tensors>& given) {
    if (action.stage == 0) return given[static_cast<std::size_t>(action.micro_batch)];
    return links.receive(action.stage, action.micro_batch, Direction::kForward);
  }

  Tensors run_stage(const PipelineStage& stage, const Action& action, const Tensors& inputs) {
    try {
      const auto versions = versions_of(inputs);
      Tensors outputs = stage.forward(inputs);
      if (action.stage > 0) require_unchanged("its input", inputs, versions);
      for (const at::Tensor& output : outputs)
        check(output.defined(), "it returned an undefined tensor");
      return outputs;
    } catch (...) {
      const Error error = current_error(kProgramError);
      throw error.reworded(fmt::format("{}: {}: stage {} of {} failed on inputs {}: {}",
                                       group.self(), to_string(action), action.stage,
                                       schedule.num_stages(), shapes_of(inputs), error.what()));
    }
  }

  // Returns the text that this rank appends to an error of another rank: the action that this rank
  // was carrying out in `function`, and the ranks of the stages.
  std::string where(std::string_view function) const {
    std::vector<int> ranks;
    for (const int rank : schedule.rank_of_stage)
      ranks.push_back(group.world_ranks()[static_cast<std::size_t>(rank)]);
    return fmt::format(
        "; this rank was in {} of a pipeline whose stages 0 to {} are on ranks {}; the action ran "
        "in {}, which every rank must call",
        to_string(under_way), schedule.num_stages() - 1, fmt::join(ranks, ", "), function);
  }

  // Calls `loss`, the program's function, and keeps its value as the loss of the micro-batch.
  at::Tensor loss_of(const Action& action, const Tensors& outputs, const Loss& loss) {
    at::Tensor value;
    try {
      value = loss(outputs, action.micro_batch);
    } catch (...) {
      const Error error = current_error(kProgramError);
      throw error.reworded(fmt::format("{}: {}: the loss of outputs {} failed: {}", group.self(),
                                       to_string(action), shapes_of(outputs), error.what()));
    }
    check(value.defined() && value.numel() == 1, "{}: {}: the loss is {}; it must be one number",
          group.self(), to_string(action), shapes_of({value}));
    result.losses[static_cast<std::size_t>(action.micro_batch)] = value.detach();
    return value;
  }

  // Returns the gradients with which the backward pass of the stage begins: 1 for the loss,
  // otherwise those that the next stage sends.
  Tensors gradients_of_outputs(const InFlight& item, const Action& action) {
    if (is_last(action.stage)) return {at::ones_like(item.outputs[0])};
    const Tensors roots = gradient_carriers(item.outputs);
    Tensors gradients = links.receive(action.stage, action.micro_batch, Direction::kBackward);
    for (std::size_t i = 0; i < roots.size(); ++i) {
      check(!gradients[i].defined() || gradients[i].sizes() == roots[i].sizes(),
            "{}: {}: an output is {}, but its gradient is {}", group.self(), to_string(action),
            shapes_of({roots[i]}), shapes_of({gradients[i]}));
    }
    return gradients;
  }

  void backward(Stage& stage, const Action& action) {
    InFlight& item = stage.in_flight.at(action.micro_batch);
    const Tensors gradients = gradients_of_outputs(item, action);
    const auto versions = versions_of(gradients);
    begin_work();
    Tensors of_inputs;
    if (action.kind == Action::Kind::kBackward) {
      auto both = item.pass->whole(gradients);
      of_inputs = std::move(both.of_inputs);
      stage.gradients.add(action.micro_batch, std::move(both.of_parameters));
      stage.in_flight.erase(action.micro_batch);
    } else {
      of_inputs = item.pass->input_half(gradients);
    }
    require_unchanged(
        fmt::format("{}: {}: the gradient of output", group.self(), to_string(action)), gradients,
        versions);
    if (action.stage > 0)
      links.send(action.stage, action.micro_batch, Direction::kBackward, of_inputs);
  }

  void weight_gradient(Stage& stage, const Action& action) {
    begin_work();
    InFlight& item = stage.in_flight.at(action.micro_batch);
    stage.gradients.add(action.micro_batch, item.pass->weight_half());
    stage.in_flight.erase(action.micro_batch);
  }

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  // Marks the time from which the action computes instead of waiting. Call it as soon as all
  // tensors that the action needs have arrived.
  void begin_work() { work_began = now(); }

  ProcessGroup& group;
  const PipelineSchedule& schedule;
  StageLinks links;
  std::map<int, Stage> own;
  PipelineStep result;
  double work_began = 0;
  Action under_way;
};

std::vector<PipelineStage::Tensors> split_micro_batches(const at::Tensor& batch,
                                                        int num_micro_batches) {
  check(batch.defined() && batch.dim() > 0 && num_micro_batches > 0 &&
            batch.size(0) % num_micro_batches == 0,
        "a batch of {} does not divide into {} micro-batches along dimension 0", shapes_of({batch}),
        num_micro_batches);
  std::vector<PipelineStage::Tensors> result;
  for (const at::Tensor& part : batch.chunk(num_micro_batches)) result.push_back({part});
  return result;
}

Pipeline::Pipeline(std::shared_ptr<ProcessGroup> group, PipelineSchedule schedule,
                   std::vector<PipelineStage> stages)
    : group_(detail::require_group(std::move(group), "Pipeline")),
      schedule_(std::move(schedule)),
      stages_(std::move(stages)),
      run_(std::make_unique<Run>(group_, schedule_, stages_)) {
  require_same_schedule();
  pipeline::validate(schedule_);
  check(schedule_.num_ranks() == group_->world_size(),
        "{}: the schedule {} is for {} ranks, but group {} has {}", group_->self(), schedule_.name,
        schedule_.num_ranks(), group_->name(), group_->world_size());
  require_own_stages();
  if (group_->world_size() == 1) return;
  const ModelShare share{fmt::format("a stage of a pipeline of {} ranks", group_->world_size())};
  for (const PipelineStage& stage : stages_) note_model_share(stage.parameters, share);
}

Pipeline::~Pipeline() = default;

void Pipeline::require_same_schedule() const {
  const std::string own = pipeline::to_csv(schedule_);
  const auto texts = all_gather_object(*group_, own);
  const auto other = std::find_if(texts.begin(), texts.end(),
                                  [&](const std::string& text) { return text != texts[0]; });
  check(other == texts.end(), "{}: the pipeline schedules of rank {} and rank 0 differ",
        group_->self(), other - texts.begin());
}

void Pipeline::require_own_stages() const {
  std::vector<int> given, wanted;
  for (const PipelineStage& stage : stages_) given.push_back(stage.index);
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    if (schedule_.rank_of_stage[static_cast<std::size_t>(stage)] == group_->rank())
      wanted.push_back(stage);
  }
  std::sort(given.begin(), given.end());
  check(given == wanted, "{}: stages [{}] were given, but schedule {} has stages [{}] on this rank",
        group_->self(), fmt::join(given, ", "), schedule_.name, fmt::join(wanted, ", "));
}

// Runs `body`, the body of the public function `function`. An error of this rank aborts the group
// with the error's message. If the other ranks already know of the error, the text of where() is
// appended to it.
void Pipeline::guarded(std::string_view function, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    const bool is_known = error.code() == ErrorCode::kAborted ||
                          error.code() == ErrorCode::kPeerLost ||
                          error.code() == ErrorCode::kTimeout;
    if (is_known) throw error.reworded(error.what() + run_->where(function));
    group_->abort(error.what());
    throw;
  } catch (...) {
    const Error error = current_error(kProgramError);
    group_->abort(fmt::format("{} failed: {}", function, error.what()));
    throw error.reworded(fmt::format("{}: {} failed: {}", group_->self(), function, error.what()));
  }
}

const std::vector<Action>& Pipeline::own_actions() const {
  return schedule_.ranks[static_cast<std::size_t>(group_->rank())];
}

PipelineStep Pipeline::step(const std::vector<Tensors>& inputs, const Loss& loss) {
  const at::AutoGradMode with_gradients(true);
  const double start = Run::now();
  guarded(kStepPipeline, [&] {
    // If a rank has left its loop and makes another call, every rank gets an error instead of
    // waiting for a message.
    engine(*group_).enter(kStepPipeline);
    run_->begin(inputs);
    for (const Action& action : own_actions()) {
      run_->carry_out(action, inputs, loss);
      run_->result.actions.push_back({action, run_->work_began - start, Run::now() - start});
    }
    run_->links.finish();
  });
  return std::move(run_->result);
}

std::vector<at::Tensor> Pipeline::evaluate(const std::vector<Tensors>& inputs, const Loss& loss) {
  const at::NoGradGuard no_gradients;
  guarded(kEvaluatePipeline, [&] {
    engine(*group_).enter(kEvaluatePipeline);
    run_->begin(inputs);
    for (const Action& action : own_actions()) {
      if (action.kind == Action::Kind::kForward) run_->evaluate(action, inputs, loss);
    }
    run_->links.finish();
  });
  return std::move(run_->result.losses);
}

}  // namespace paceline
