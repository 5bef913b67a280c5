#include "paceline/training/parallel/data_parallel.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/module.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/training/device/streams.h"
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

  // Calls body() at the same time for as many replicas as there are `devices`, each replica always
  // on the same thread, with the caller's grad mode and autocast, and waits for all of them. If
  // replicas throw, the exception of the first of them is thrown, as an Error that names the
  // replica, its device and `what` it was doing.
  void run(const std::vector<c10::Device>& devices, const char* what,
           const std::function<void(int replica)>& body);

 private:
  void stop();
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
  std::vector<std::exception_ptr> errors_;  // [replica]; written by the replica's thread
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

[[noreturn]] void throw_of_replica(const std::exception_ptr& error, std::size_t replica,
                                   const std::vector<c10::Device>& devices, const char* what) {
  const c10::Device device = devices[replica];
  const std::string place = device.is_cpu() ? "" : " on " + device.str();
  try {
    std::rethrow_exception(error);
  } catch (...) {
    const Error known = current_error();
    fail(known.code(), "replica {} of {}{}: {}: {}", replica, devices.size(), place, what,
         known.what());
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(int num_replicas) {
  try {
    for (int replica = 1; replica < num_replicas; ++replica)
      threads_.push_back(start_thread("paceline-dp", [this, replica] { work(replica); }));
  } catch (...) {
    stop();
    throw;
  }
}

ReplicaThreads::~ReplicaThreads() { stop(); }

void ReplicaThreads::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  begun_.notify_all();
}

void ReplicaThreads::run(const std::vector<c10::Device>& devices, const char* what,
                         const std::function<void(int)>& body) {
  const std::lock_guard one_run(one_run_);
  const int count = static_cast<int>(devices.size());
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
    if (errors_[replica]) throw_of_replica(errors_[replica], replica, devices, what);
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
  std::vector<c10::Device> devices;     // [replica]
  std::vector<c10::Stream> streams;     // the caller's current stream of each CUDA device
  std::vector<ReplicaTensors> inputs;   // [replica]
  std::vector<ReplicaTensors> outputs;  // [replica], with their graphs
  ReplicaTensors module_parameters;
  std::vector<std::int64_t> versions;  // versions of the module's parameters in the forward pass
  // Indices of the inputs and parameters that the node of the graph has as inputs, in order.
  std::vector<std::size_t> tracked_inputs, tracked_parameters;
};

// Returns the tensor itself if it is on the device, unless `copies`. A copy to a CUDA device
// follows the current streams of both devices, and the host does not wait for it.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device, bool copies = false) {
  if (!tensor.defined()) return tensor;
  return tensor.to(at::TensorOptions(device), /*non_blocking=*/device.is_cuda(), copies);
}

std::vector<c10::Stream> current_streams_of(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device device : devices) {
    if (device.is_cpu()) continue;
    const c10::Stream own = current_stream_of(device);
    if (std::ranges::find(streams, own) == streams.end()) streams.push_back(own);
  }
  return streams;
}

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

ReplicaTensors gather(const std::vector<ReplicaTensors>& outputs, c10::Device device) {
  ReplicaTensors gathered;
  for (std::size_t i = 0; i < outputs.front().size(); ++i) {
    ReplicaTensors parts;
    for (std::size_t replica = 0; replica < outputs.size(); ++replica) {
      check(outputs[replica].size() == outputs.front().size() && outputs[replica][i].defined(),
            "DataParallel: replica {} has no output {}, which replica 0 has", replica, i);
      const at::Tensor& part = outputs[replica][i];
      parts.push_back(on_device(part.dim() == 0 ? part.unsqueeze(0) : part, device));
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
  pass.threads->run(pass.devices, "forward", [&](int replica) {
    const auto i = static_cast<std::size_t>(replica);
    const c10::MultiStreamGuard streams(pass.streams);
    const c10::DeviceGuard device(pass.devices[i]);
    pass.outputs[i] = pass.run_replica(*pass.set->modules[i], pass.inputs[i]);
  });
}

// Runs the backward passes of the replicas from `begin` to `end`, starting from their rows of the
// gradients.
void run_backward(Pass& pass, const variable_list& gradients, std::size_t begin, std::size_t end) {
  variable_list roots, root_gradients;
  for (std::size_t replica = begin; replica < end; ++replica) {
    for (auto& parameter : pass.set->parameters[replica]) parameter.mutable_grad() = at::Tensor();
    for (auto& input : pass.inputs[replica]) {
      if (input.defined()) input.mutable_grad() = at::Tensor();
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& output = pass.outputs[replica][i];
      if (!gradients[i].defined() || !output.requires_grad()) continue;
      std::int64_t row = 0;
      for (std::size_t before = 0; before < replica; ++before)
        row += pass.outputs[before][i].dim() == 0 ? 1 : pass.outputs[before][i].size(0);
      const at::Tensor own = output.dim() == 0 ? gradients[i].select(0, row)
                                               : gradients[i].narrow(0, row, output.size(0));
      roots.push_back(output);
      root_gradients.push_back(on_device(own, output.device()));
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients, /*retain_graph=*/true);
}

// Runs the backward passes of all replicas at the same time.
void run_backward(Pass& pass, const variable_list& gradients) {
  if (pass.streams.empty()) {
    pass.threads->run(pass.devices, "backward", [&](int replica) {
      const auto i = static_cast<std::size_t>(replica);
      run_backward(pass, gradients, i, i + 1);
    });
    return;
  }
  // LibTorch has one thread for all backward passes of a CUDA device. It may be this thread, so a
  // replica's thread could wait for it forever. A single call for all replicas uses the threads of
  // all devices instead.
  try {
    run_backward(pass, gradients, 0, pass.devices.size());
  } catch (...) {
    const Error known = current_error();
    fail(known.code(), "replicas on {}: backward: {}", c10::Join(", ", pass.devices), known.what());
  }
}

at::Tensor gradient_of_input(const Pass& pass, std::size_t index) {
  ReplicaTensors parts;
  for (const ReplicaTensors& inputs : pass.inputs) {
    const at::Tensor& input = inputs[index];
    const at::Tensor own = input.grad().defined() ? input.grad() : at::zeros_like(input);
    parts.push_back(on_device(own, pass.devices.front()));
  }
  return at::cat(parts);
}

// Removes the parameter's gradients from the replicas, and returns their sum.
at::Tensor gradient_of_parameter(Pass& pass, std::size_t index) {
  ReplicaTensors parts;
  for (std::size_t replica = 0; replica < pass.inputs.size(); ++replica) {
    at::Tensor& own = pass.set->parameters[replica][index].mutable_grad();
    parts.push_back(on_device(std::exchange(own, at::Tensor()), pass.devices.front()));
  }
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
    variable_list outputs = gather(pass->outputs, pass->devices.front()), constants;
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
    const c10::MultiStreamGuard streams(pass.streams);
    run_backward(pass, gradients);
    variable_list result;
    for (const std::size_t index : pass.tracked_inputs)
      result.push_back(gradient_of_input(pass, index));
    for (const std::size_t index : pass.tracked_parameters)
      result.push_back(gradient_of_parameter(pass, index));
    result.emplace_back();  // for the argument `pass`, which has no gradient
    return result;
  }
};

// Returns the devices with their numbers, or throws an Error.
std::vector<c10::Device> usable_devices(std::vector<c10::Device> devices) {
  check(!devices.empty(), "DataParallel: no devices; at least 1 is needed");
  for (c10::Device& device : devices) {
    check(device.type() == devices.front().type(),
          "DataParallel: replicas on {} and {}; give devices of one type", devices.front().str(),
          device.str());
    device = device.is_cpu() ? c10::Device(c10::kCPU) : choose_device(with_index(device).str(), 0);
  }
  return devices;
}

void require_on(c10::Device device, const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  for (const auto& one : tensors) {
    check(one.value().device() == device,
          "DataParallel: {} is on {}, but the first replica is on {}: {}", one.key(),
          one.value().device().str(), device.str(),
          device.is_cpu() ? "give the devices of the replicas instead of their number"
                          : "call module->to(device) with the first device");
  }
}

}  // namespace

std::vector<c10::Device> replicas_on_cpu(int num_replicas) {
  check(num_replicas >= 1, "DataParallel: {} replicas; at least 1 is needed", num_replicas);
  return std::vector<c10::Device>(static_cast<std::size_t>(num_replicas), c10::kCPU);
}

ModuleReplicas::ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                               std::vector<c10::Device> devices)
    : module_(std::move(module)),
      devices_(usable_devices(std::move(devices))),
      threads_(std::make_shared<ReplicaThreads>(num_replicas())) {
  check(module_ != nullptr, "DataParallel: no module");
  if (num_replicas() > 1) sets_.push_back(make_set());
}

std::shared_ptr<ReplicaSet> ModuleReplicas::make_set() const {
  auto set = std::make_shared<ReplicaSet>();
  for (std::size_t replica = 0; replica < devices_.size(); ++replica) {
    try {
      set->modules.push_back(module_->clone(devices_[replica]));
    } catch (const c10::OutOfMemoryError&) {
      throw_of_replica(std::current_exception(), replica, devices_, "clone");
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

// Updates a replica from the module. Parameters on the module's device, and the first replica's
// buffers, share the module's memory; others are copies.
void ModuleReplicas::follow_module(ReplicaSet& set, std::size_t replica,
                                   const ReplicaTensors& parameters,
                                   const ReplicaTensors& buffers) const {
  const at::NoGradGuard no_grad;
  const c10::Device device = devices_[replica];
  const auto modules = module_->modules(), own = set.modules[replica]->modules();
  for (std::size_t i = 0; i < modules.size() && i < own.size(); ++i)
    own[i]->train(modules[i]->is_training());  // parents are listed before their children
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& parameter = set.parameters[replica][i];
    parameter.set_data(on_device(parameters[i].detach(), device));
    parameter.requires_grad_(parameters[i].requires_grad());
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool copies = replica > 0;
    set.buffers[replica][i].set_data(on_device(buffers[i].detach(), device, copies));
  }
}

ReplicaTensors ModuleReplicas::forward(ReplicaTensors inputs, const ReplicaForward& forward) {
  const c10::Device first = devices_.front();
  const auto parameters = module_->named_parameters(), buffers = module_->named_buffers();
  require_on(first, parameters);
  require_on(first, buffers);
  auto parts = scatter(inputs, num_replicas());
  for (at::Tensor& input : inputs) {
    // If the input is on another device, autograd copies its gradient back to that device.
    if (parts.size() == 1 || (input.defined() && input.requires_grad()))
      input = on_device(input, first);
  }
  if (parts.size() == 1) {
    const c10::DeviceGuard device(first);
    return forward(*module_, inputs);
  }
  const auto pass = c10::make_intrusive<Pass>();
  pass->threads = threads_;
  pass->set = take_set();
  pass->module_parameters = parameters.values();
  const ReplicaTensors all_buffers = buffers.values();
  pass->run_replica = forward;
  pass->devices.assign(devices_.begin(), devices_.begin() + std::ssize(parts));
  pass->streams = current_streams_of(pass->devices);
  pass->inputs = std::move(parts);
  for (std::size_t replica = 0; replica < pass->inputs.size(); ++replica) {
    try {
      follow_module(*pass->set, replica, pass->module_parameters, all_buffers);
      for (at::Tensor& input : pass->inputs[replica]) {
        if (input.defined()) input = on_device(input.detach(), devices_[replica]);
      }
    } catch (...) {
      throw_of_replica(std::current_exception(), replica, pass->devices, "copy");
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
    outputs = gather(pass->outputs, first);
  } else {
    outputs = ReplicasFunction::apply(at::TensorList(tracked), pass);
  }
  pass->run_replica = nullptr;
  return outputs;
}

}  // namespace paceline::detail
