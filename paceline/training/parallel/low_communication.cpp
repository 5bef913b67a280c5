#include "paceline/training/parallel/low_communication.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

constexpr std::int64_t kBlock = 256;  // elements with one scale
constexpr const char* kOwner = "low_communication";
constexpr const char* kOuterSteps = "num_steps";

std::int64_t round_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

// All elements of a dense tensor in the order of its memory.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

// int8 [blocks, 256] and a float32 scale for each block, as bytes [blocks, 260].
at::Tensor to_int8(const at::Tensor& values) {
  const at::Tensor blocks = values.view({-1, kBlock});
  const at::Tensor scales = blocks.abs().amax(1, true) / 127;
  const at::Tensor inverse = at::where(scales > 0, scales.reciprocal(), at::zeros_like(scales));
  const at::Tensor bytes = (blocks * inverse).round().clamp(-127, 127).to(at::kChar);
  return at::cat({bytes.view(at::kByte), scales.contiguous().view(at::kByte)}, 1);
}
at::Tensor from_int8(const at::Tensor& payload) {
  const at::Tensor bytes = payload.slice(1, 0, kBlock).contiguous().view(at::kChar);
  const at::Tensor scales = payload.slice(1, kBlock).contiguous().view(at::kFloat);
  return (bytes.to(at::kFloat) * scales).view({-1});
}

// Keeps the optimizer's parameters open for reads and writes.
std::shared_ptr<void> open_parameters(const LowCommunicationOptions& options) {
  return options.optimizer == nullptr ? nullptr : options.optimizer->writable_parameters();
}

}  // namespace

std::shared_ptr<ProcessGroup> host_group(GroupRef group) {
  return group->split(group->hosts().host_of[static_cast<std::size_t>(group->rank())],
                      group->rank());
}

LowCommunication::LowCommunication(std::shared_ptr<ProcessGroup> peers,
                                   std::shared_ptr<ProcessGroup> learner,
                                   std::vector<at::Tensor> parameters,
                                   const LowCommunicationOptions& options)
    : peers_(std::move(peers)),
      learner_(std::move(learner)),
      parameters_(std::move(parameters)),
      options_(options) {
  check(options.period >= 1 && options.fragments >= 1 && options.fragments <= options.period,
        "LowCommunication: period {} and fragments {} must be at least 1, and a fragment needs a "
        "step of the period for itself",
        options.period, options.fragments);
  check(options.delay >= 0 && options.delay < options.period / options.fragments,
        "LowCommunication: a delay of {} steps does not end before the next of {} fragments leaves "
        "in a period of {}",
        options.delay, options.fragments, options.period);
  check(options.warmup_steps >= 0 && options.outer_lr > 0 && options.outer_momentum >= 0 &&
            options.outer_momentum < 1,
        "LowCommunication: warmup_steps {} must be at least 0, outer_lr {} above 0, and "
        "outer_momentum {} in [0, 1)",
        options.warmup_steps, options.outer_lr, options.outer_momentum);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    check(parameter.is_cpu() && parameter.is_floating_point() && is_dense(parameter),
          "LowCommunication: parameter {} is {}, but must be a dense floating-point tensor on the "
          "CPU",
          i, shapes_of({parameter}));
    elements += parameter.numel();
  }
  check(elements > 0, "LowCommunication: there are no parameters");

  const std::int64_t ranks = learner_->world_size();
  for (std::int64_t i = 0; i < options.fragments; ++i) {
    Fragment& fragment = fragments_.emplace_back();
    fragment.begin = elements * i / options.fragments;
    fragment.size = elements * (i + 1) / options.fragments - fragment.begin;
    fragment.part_size = round_up((fragment.size + ranks - 1) / ranks, kBlock);
    fragment.part_begin =
        fragment.begin + std::min(fragment.size, fragment.part_size * learner_->rank());
    fragment.offset = options.period * (i + 1) / options.fragments % options.period;
  }

  const auto open = open_parameters(options_);
  anchor_ = read(0, elements, elements);
  momentum_ = at::zeros_like(anchor_);
  broadcast(*peers_, anchor_, 0);
  write(0, anchor_);
}

at::Tensor LowCommunication::read(std::int64_t begin, std::int64_t size,
                                  std::int64_t padded) const {
  at::Tensor values = at::zeros({padded});
  std::int64_t at = 0;  // of the parameter
  for (const at::Tensor& parameter : parameters_) {
    const std::int64_t first = std::max(begin, at);
    const std::int64_t last = std::min(begin + size, at + parameter.numel());
    if (first < last)
      values.slice(0, first - begin, last - begin)
          .copy_(flat(parameter).slice(0, first - at, last - at));
    at += parameter.numel();
  }
  return values;
}

void LowCommunication::write(std::int64_t begin, const at::Tensor& values) const {
  std::int64_t at = 0;
  for (const at::Tensor& parameter : parameters_) {
    const std::int64_t first = std::max(begin, at);
    const std::int64_t last = std::min(begin + values.numel(), at + parameter.numel());
    if (first < last)
      flat(parameter)
          .slice(0, first - at, last - at)
          .copy_(values.slice(0, first - begin, last - begin));
    at += parameter.numel();
  }
}

void LowCommunication::step() {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  is_synchronised_ = false;
  if (num_steps_ <= options_.warmup_steps) return average_all();
  if (travelling_ && travelling_->due == num_steps_) arrive();
  const std::int64_t place = (num_steps_ - options_.warmup_steps) % options_.period;
  for (std::size_t i = 0; i < fragments_.size(); ++i)
    if (fragments_[i].offset == place) send(i, num_steps_ + options_.delay);
  if (travelling_ && travelling_->due == num_steps_) arrive();
  is_synchronised_ = options_.fragments == 1 && options_.delay == 0 && place == 0;
}

void LowCommunication::finish() {
  const at::NoGradGuard no_grad;
  if (travelling_) arrive();
}

// The parts of all ranks of the learner.
at::Tensor LowCommunication::gather(const Fragment& fragment, const at::Tensor& part) const {
  const at::Tensor all =
      learner_->world_size() == 1 ? part : all_gather_into_tensor(*learner_, part);
  return all.slice(0, 0, fragment.size);
}

void LowCommunication::average_all() {
  const auto open = open_parameters(options_);
  for (const Fragment& fragment : fragments_) {
    const std::int64_t size =
        std::min(fragment.part_size, fragment.begin + fragment.size - fragment.part_begin);
    const at::Tensor part = read(fragment.part_begin, size, fragment.part_size);
    all_reduce(*peers_, part, ReduceOp::kMean);
    const at::Tensor whole = gather(fragment, part);
    write(fragment.begin, whole);
    anchor_.slice(0, fragment.begin, fragment.begin + fragment.size).copy_(whole);
    const double learners = peers_->world_size();
    bytes_sent_ += 4.0 * static_cast<double>(fragment.part_size) * 2 * (learners - 1) / learners;
  }
  is_synchronised_ = true;
}

void LowCommunication::send(std::size_t number, std::int64_t due) {
  Fragment& fragment = fragments_[number];
  const std::int64_t end = fragment.begin + fragment.size;
  const std::int64_t size = std::min(fragment.part_size, end - fragment.part_begin);
  Travelling& round = travelling_.emplace();
  round.fragment = number;
  round.due = due;
  {
    const auto open = open_parameters(options_);
    round.sent = read(fragment.part_begin, size, fragment.part_size);
  }
  round.values = at::zeros({fragment.part_size});
  round.values.slice(0, 0, size)
      .copy_(anchor_.slice(0, fragment.part_begin, fragment.part_begin + size) -
             round.sent.slice(0, 0, size));
  encode(round, fragment);
}

void LowCommunication::encode(Travelling& round, Fragment& fragment) {
  const auto elements = static_cast<double>(fragment.part_size);
  const double learners = peers_->world_size();
  if (options_.wire == WirePrecision::kFloat32) {
    bytes_sent_ += 4 * elements * 2 * (learners - 1) / learners;
    round.work = all_reduce(*peers_, round.values, ReduceOp::kMean, {.async_op = true});
    return;
  }
  if (fragment.error.defined()) round.values += fragment.error;
  if (options_.wire == WirePrecision::kBfloat16) {
    round.payload = round.values.to(at::kBFloat16);
    fragment.error = round.values - round.payload.to(at::kFloat);
    bytes_sent_ += 2 * elements * 2 * (learners - 1) / learners;
    round.work = all_reduce(*peers_, round.payload, ReduceOp::kMean, {.async_op = true});
    return;
  }
  round.payload = to_int8(round.values);
  fragment.error = round.values - from_int8(round.payload);
  round.payloads =
      at::empty({peers_->world_size() * round.payload.size(0), round.payload.size(1)}, at::kByte);
  bytes_sent_ += static_cast<double>(round.payload.numel()) * (learners - 1);
  round.work = all_gather_into_tensor(*peers_, round.payloads, round.payload, {.async_op = true});
}

// Turns what has arrived into the mean difference.
void LowCommunication::decode(Travelling& round) const {
  if (options_.wire == WirePrecision::kBfloat16) round.values = round.payload.to(at::kFloat);
  if (options_.wire != WirePrecision::kInt8) return;
  round.values.zero_();
  for (const at::Tensor& payload : round.payloads.chunk(peers_->world_size()))
    round.values += from_int8(payload);
  round.values /= peers_->world_size();
}

void LowCommunication::arrive() {
  Travelling round = std::move(*travelling_);
  travelling_.reset();
  round.work->wait();
  decode(round);
  const Fragment& fragment = fragments_[round.fragment];
  const std::int64_t end = fragment.begin + fragment.size;
  const at::Tensor mean = gather(fragment, round.values);
  const at::Tensor anchor = anchor_.slice(0, fragment.begin, end);
  const at::Tensor momentum = momentum_.slice(0, fragment.begin, end);
  momentum.mul_(options_.outer_momentum).add_(mean);
  anchor.sub_(mean, options_.outer_lr).sub_(momentum, options_.outer_lr * options_.outer_momentum);
  ++num_rounds_;

  const auto open = open_parameters(options_);
  if (options_.delay == 0) return write(fragment.begin, anchor);
  // What this learner has trained since the fragment was sent. Each rank adds it to its own part
  // only, because the ranks of a host may share the parameters.
  const std::int64_t size = std::min(fragment.part_size, end - fragment.part_begin);
  at::Tensor part = read(fragment.part_begin, size, fragment.part_size);
  part.sub_(round.sent);
  part.slice(0, 0, size).add_(anchor_.slice(0, fragment.part_begin, fragment.part_begin + size));
  write(fragment.begin, gather(fragment, part));
}

optim::Metadata LowCommunication::options_words() const {
  return {{"period", optim::to_word(options_.period)},
          {"fragments", optim::to_word(options_.fragments)},
          {"delay", optim::to_word(options_.delay)},
          {"warmup_steps", optim::to_word(options_.warmup_steps)},
          {"outer_lr", optim::to_word(options_.outer_lr)},
          {"outer_momentum", optim::to_word(options_.outer_momentum)},
          {"wire", optim::to_word(static_cast<std::int64_t>(options_.wire))}};
}

optim::Metadata LowCommunication::state() const {
  optim::Metadata words = options_words();
  words[kOuterSteps] = optim::to_word(num_steps_);
  return words;
}

void LowCommunication::set_state(const optim::Metadata& state) {
  optim::require_same_words(state, options_words(), kOwner);
  num_steps_ = optim::count_in(state, kOuterSteps, kOwner);
  if (travelling_) travelling_->work->wait();
  travelling_.reset();
  for (Fragment& fragment : fragments_) fragment.error.reset();
}

}  // namespace paceline
