#include "paceline/training/parallel/data_parallel.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/module.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/training/tensor/current_error.h"

namespace paceline::detail {

// The threads that work on the replicas of a module: the caller's thread works on the first
// replica, and every other replica has a thread of its own. The threads share LibTorch's intra-op
// threads equally.
//
// Thread safety: any thread may call run(); only one call runs at a time.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(int num_replicas);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Calls body(0) to body(count - 1) at the same time, each replica always on the same thread, with
  // the caller's grad mode and autocast, and waits for all of them. If replicas throw, the
  // exception of the first of them is thrown, as an Error that names the replica and `what` it was
  // doing.
  void run(int count, const char* what, const std::function<void(int replica)>& body);

 private:
  struct Job {
    int count = 0;
    int threads_of_each = 1;
    const std::function<void(int)>* body = nullptr;
    at::ThreadLocalState state;  // the caller's thread-local state
  };
  void work(int replica);
  void attempt(int replica, const Job& job);

  std::mutex one_run_;  // held while a run is under way
  std::mutex mutex_;    // guards the members below
  std::condition_variable begun_, ended_;
  const Job* job_ = nullptr;
  std::uint64_t num_runs_ = 0;
  int num_working_ = 0;
  bool stopped_ = false;
  std::vector<std::exception_ptr> errors_;  // [replica]; written by its thread in a run
  std::vector<std::jthread> threads_;  // declared last, because the threads use the other members
};

// Clones of a module, one for each replica, kept for later passes.
struct ReplicaSet {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<ReplicaTensors> parameters, buffers;  // [module], in order
};

namespace {

// Sets the number of OpenMP threads with which the calling thread computes, until the end of the
// scope. at::set_num_threads() would also set the number for threads that start later.
class ComputingThreads {
 public:
  explicit ComputingThreads(int count) : before_(at::get_num_threads()) { set(count); }
  ~ComputingThreads() { set(before_); }
  ComputingThreads(const ComputingThreads&) = delete;
  ComputingThreads& operator=(const ComputingThreads&) = delete;

 private:
  static void set(int count) {
    static void (*const set_num_threads)(int) =
        reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_num_threads != nullptr) set_num_threads(count);
  }
  const int before_;
};

[[noreturn]] void throw_of_replica(const std::exception_ptr& error, std::size_t replica, int count,
                                   const char* what) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    const Error known = current_error();
    fail(known.code(), "replica {} of {}: {}: {}", replica, count, what, known.what());
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(int num_replicas) {
  for (int replica = 1; replica < num_replicas; ++replica)
    threads_.push_back(start_thread("paceline-dp", [this, replica] { work(replica); }));
}

ReplicaThreads::~ReplicaThreads() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  begun_.notify_all();
}

void ReplicaThreads::run(int count, const char* what, const std::function<void(int)>& body) {
  const std::lock_guard one_run(one_run_);
  const Job job{count, std::max(1, at::get_num_threads() / count), &body, at::ThreadLocalState()};
  {
    const std::lock_guard lock(mutex_);
    errors_.assign(static_cast<std::size_t>(count), nullptr);
    job_ = &job;
    num_working_ = count - 1;
    ++num_runs_;
    begun_.notify_all();
  }
  attempt(0, job);
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return num_working_ == 0; });
    job_ = nullptr;
  }
  for (std::size_t replica = 0; replica < errors_.size(); ++replica) {
    if (errors_[replica]) throw_of_replica(errors_[replica], replica, count, what);
  }
}

void ReplicaThreads::work(int replica) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return stopped_ || num_runs_ != seen; });
    if (stopped_) return;
    seen = num_runs_;
    if (job_ == nullptr || replica >= job_->count) continue;
    const Job& job = *job_;
    lock.unlock();
    attempt(replica, job);
    lock.lock();
    if (--num_working_ == 0) ended_.notify_one();
  }
}

void ReplicaThreads::attempt(int replica, const Job& job) {
  try {
    const at::ThreadLocalStateGuard state(job.state);
    const ComputingThreads threads(job.threads_of_each);
    (*job.body)(replica);
  } catch (...) {
    errors_[static_cast<std::size_t>(replica)] = std::current_exception();
  }
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One forward pass of all replicas, with all data for its backward pass.
struct Pass : torch::CustomClassHolder {
  std::shared_ptr<ReplicaThreads> threads;
  std::shared_ptr<ReplicaSet> set;
  ReplicaForward run_replica;
  std::vector<ReplicaTensors> inputs;   // [replica]
  std::vector<ReplicaTensors> outputs;  // [replica], with their graphs
  ReplicaTensors module_parameters;
  std::vector<std::int64_t> versions;  // versions of the module's parameters in the forward pass
  // Indices of the inputs and parameters that the node of the graph has as inputs, in order.
  std::vector<std::size_t> tracked_inputs, tracked_parameters;

  int count() const { return static_cast<int>(inputs.size()); }
};

// Returns each replica's part of each input.
std::vector<ReplicaTensors> scatter(const ReplicaTensors& inputs, int num_replicas) {
  std::vector<ReplicaTensors> parts;
  std::int64_t samples = -1;
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) continue;
    check(input.dim() > 0, "DataParallel: an input without dimensions cannot be cut along dim 0");
    check(samples < 0 || input.size(0) == samples,
          "DataParallel: inputs of {} and {} samples (dim 0); all need the same number", samples,
          input.size(0));
    samples = input.size(0);
    parts.resize(input.chunk(num_replicas).size());
  }
  check(!parts.empty(), "DataParallel: no input is a tensor that could be cut along dim 0");
  for (const at::Tensor& input : inputs) {
    const auto chunks = input.defined() ? input.chunk(num_replicas) : ReplicaTensors(parts.size());
    for (std::size_t replica = 0; replica < parts.size(); ++replica)
      parts[replica].push_back(chunks[replica]);
  }
  return parts;
}

ReplicaTensors gather(const std::vector<ReplicaTensors>& outputs) {
  ReplicaTensors gathered;
  for (std::size_t i = 0; i < outputs.front().size(); ++i) {
    ReplicaTensors parts;
    for (std::size_t replica = 0; replica < outputs.size(); ++replica) {
      check(outputs[replica].size() == outputs.front().size() && outputs[replica][i].defined(),
            "DataParallel: replica {} has no output {}, which replica 0 has", replica, i);
      const at::Tensor& part = outputs[replica][i];
      parts.push_back(part.dim() == 0 ? part.unsqueeze(0) : part);
    }
    gathered.push_back(at::cat(parts));
  }
  return gathered;
}

// Returns the sum over the replicas; undefined if no replica has a tensor.
at::Tensor tree_sum(const ReplicaTensors& parts, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return parts[begin];
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  const at::Tensor left = tree_sum(parts, begin, middle), right = tree_sum(parts, middle, end);
  if (!left.defined() || !right.defined()) return left.defined() ? left : right;
  return left + right;
}

void run_forward(Pass& pass) {
  pass.outputs.resize(pass.inputs.size());
  pass.threads->run(pass.count(), "forward", [&](int replica) {
    const auto i = static_cast<std::size_t>(replica);
    pass.outputs[i] = pass.run_replica(*pass.set->modules[i], pass.inputs[i]);
  });
}

// Runs the replica's own backward pass, starting from its rows of the gradients.
void run_backward(Pass& pass, std::size_t replica, const variable_list& gradients) {
  for (auto& parameter : pass.set->parameters[replica]) parameter.mutable_grad() = at::Tensor();
  for (auto& input : pass.inputs[replica]) {
    if (input.defined()) input.mutable_grad() = at::Tensor();
  }
  variable_list roots, root_gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& output = pass.outputs[replica][i];
    if (!gradients[i].defined() || !output.requires_grad()) continue;
    std::int64_t begin = 0;
    for (std::size_t before = 0; before < replica; ++before)
      begin += pass.outputs[before][i].dim() == 0 ? 1 : pass.outputs[before][i].size(0);
    roots.push_back(output);
    root_gradients.push_back(output.dim() == 0 ? gradients[i].select(0, begin)
                                               : gradients[i].narrow(0, begin, output.size(0)));
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients, /*retain_graph=*/true);
}

at::Tensor gradient_of_input(const Pass& pass, std::size_t index) {
  ReplicaTensors parts;
  for (const ReplicaTensors& inputs : pass.inputs) {
    const at::Tensor& input = inputs[index];
    parts.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
  }
  return at::cat(parts);
}

at::Tensor gradient_of_parameter(const Pass& pass, std::size_t index) {
  ReplicaTensors parts;
  for (std::size_t replica = 0; replica < pass.inputs.size(); ++replica)
    parts.push_back(pass.set->parameters[replica][index].grad());
  return tree_sum(parts, 0, parts.size());
}

struct ReplicasFunction : torch::autograd::Function<ReplicasFunction> {
  // `tracked`: the tensors that require a gradient, inputs first.
  static variable_list forward(AutogradContext* context, at::TensorList tracked,
                               const c10::intrusive_ptr<Pass>& pass) {
    (void)tracked;
    context->set_materialize_grads(false);
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    {
      const at::AutoGradMode with_gradients(true);
      for (const std::size_t index : pass->tracked_inputs) {
        for (ReplicaTensors& inputs : pass->inputs) inputs[index].requires_grad_();
      }
      run_forward(*pass);
    }
    variable_list outputs = gather(pass->outputs), constants;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto tracks = [&](const ReplicaTensors& own) { return own[i].requires_grad(); };
      if (std::none_of(pass->outputs.begin(), pass->outputs.end(), tracks))
        constants.push_back(outputs[i]);
    }
    context->mark_non_differentiable(constants);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check(!at::GradMode::is_enabled(), "DataParallel has no second derivative");
    const auto capsule = context->saved_data["pass"].toCapsule();
    auto& pass = static_cast<Pass&>(*capsule);
    for (std::size_t i = 0; i < pass.module_parameters.size(); ++i) {
      check(pass.module_parameters[i]._version() == pass.versions[i],
            "DataParallel: parameter {} was changed between the forward and the backward pass", i);
    }
    pass.threads->run(pass.count(), "backward", [&](int replica) {
      run_backward(pass, static_cast<std::size_t>(replica), gradients);
    });
    variable_list result;
    for (const std::size_t index : pass.tracked_inputs)
      result.push_back(gradient_of_input(pass, index));
    for (const std::size_t index : pass.tracked_parameters)
      result.push_back(gradient_of_parameter(pass, index));
    result.emplace_back();  // for the argument `pass`, which has no gradient
    return result;
  }
};

}  // namespace

ModuleReplicas::ModuleReplicas(std::shared_ptr<torch::nn::Module> module, int num_replicas)
    : module_(std::move(module)),
      num_replicas_(num_replicas),
      threads_(std::make_shared<ReplicaThreads>(num_replicas)) {
  check(module_ != nullptr, "DataParallel: no module");
  check(num_replicas >= 1, "DataParallel: {} replicas; at least 1 is needed", num_replicas);
  if (num_replicas > 1) sets_.push_back(make_set());
}

std::shared_ptr<ReplicaSet> ModuleReplicas::make_set() const {
  auto set = std::make_shared<ReplicaSet>();
  for (int replica = 0; replica < num_replicas_; ++replica) {
    try {
      set->modules.push_back(module_->clone());
    } catch (const c10::Error& error) {
      fail(ErrorCode::kInvalid,
           "DataParallel: {} cannot be cloned: derive it from torch::nn::Cloneable, or override "
           "clone() ({})",
           module_->name(), error.what_without_backtrace());
    }
    const torch::nn::Module& original = *module_;
    const torch::nn::Module& clone = *set->modules.back();
    check(typeid(clone) == typeid(original),
          "DataParallel: clone() of {} returns another type, {}; derive it from "
          "torch::nn::Cloneable<{}>",
          module_->name(), clone.name(), module_->name());
    set->parameters.push_back(clone.parameters());
    set->buffers.push_back(clone.buffers());
    check(set->parameters.back().size() == module_->parameters().size() &&
              set->buffers.back().size() == module_->buffers().size(),
          "DataParallel: a clone of {} has other parameters or buffers: reset() must register all "
          "of them",
          module_->name());
  }
  return set;
}

std::shared_ptr<ReplicaSet> ModuleReplicas::take_set() {
  for (const auto& set : sets_) {
    if (set.use_count() == 1) return set;
  }
  sets_.push_back(make_set());
  return sets_.back();
}

// Updates the replicas from the module. Parameters, and the first replica's buffers, share the
// module's memory; other buffers are copies.
void ModuleReplicas::follow_module(ReplicaSet& set) const {
  const at::NoGradGuard no_grad;
  const auto modules = module_->modules();
  const auto parameters = module_->parameters();
  const auto buffers = module_->buffers();
  for (std::size_t replica = 0; replica < set.modules.size(); ++replica) {
    const auto own = set.modules[replica]->modules();
    for (std::size_t i = 0; i < modules.size() && i < own.size(); ++i)
      own[i]->train(modules[i]->is_training());  // parents are listed before their children
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor& parameter = set.parameters[replica][i];
      parameter.set_data(parameters[i].detach());
      parameter.requires_grad_(parameters[i].requires_grad());
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      set.buffers[replica][i].set_data(replica == 0 ? buffers[i].detach() : buffers[i].clone());
    }
  }
}

ReplicaTensors ModuleReplicas::forward(const ReplicaTensors& inputs,
                                       const ReplicaForward& forward) {
  auto parts = scatter(inputs, num_replicas_);
  if (parts.size() == 1) return forward(*module_, inputs);
  const auto pass = c10::make_intrusive<Pass>();
  pass->threads = threads_;
  pass->set = take_set();
  follow_module(*pass->set);
  pass->run_replica = forward;
  pass->inputs = std::move(parts);
  pass->module_parameters = module_->parameters();
  for (ReplicaTensors& own : pass->inputs) {
    for (at::Tensor& input : own) {
      if (input.defined()) input = input.detach();
    }
  }
  ReplicaTensors tracked;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    pass->tracked_inputs.push_back(i);
    tracked.push_back(inputs[i]);
  }
  for (std::size_t i = 0; i < pass->module_parameters.size(); ++i) {
    const at::Tensor& parameter = pass->module_parameters[i];
    pass->versions.push_back(static_cast<std::int64_t>(parameter._version()));
    if (!parameter.requires_grad()) continue;
    pass->tracked_parameters.push_back(i);
    tracked.push_back(parameter);
  }
  ReplicaTensors outputs;
  if (!at::GradMode::is_enabled() || tracked.empty()) {
    run_forward(*pass);
    outputs = gather(pass->outputs);
  } else {
    outputs = ReplicasFunction::apply(at::TensorList(tracked), pass);
  }
  pass->run_replica = nullptr;
  return outputs;
}

}  // namespace paceline::detail
