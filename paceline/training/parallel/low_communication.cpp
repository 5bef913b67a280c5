#include "paceline/training/parallel/low_communication.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/rpc/workers.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/parallel/outer_step.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

using detail::kOuterBlock;

constexpr const char* kOwner = "low_communication";
constexpr const char* kOuterSteps = "num_steps";

std::int64_t round_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

// All elements of a dense tensor in the order of its memory.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

// Keeps the optimizer's parameters open for reads and writes until the result is destroyed.
std::shared_ptr<void> open_parameters(const LowCommunicationOptions& options) {
  return options.optimizer == nullptr ? nullptr : options.optimizer->writable_parameters();
}

// The number that stands for the wire type in checkpoints.
std::int64_t number_of(at::ScalarType wire) {
  return wire == at::kFloat ? 0 : wire == at::kBFloat16 ? 1 : 2;
}

}  // namespace

struct LowCommunication::InFlight {
  std::size_t fragment = 0;
  std::int64_t due = 0;  // the step in which the fragment arrives
  at::Tensor sent;       // this rank's part of the parameters when the fragment was sent
  at::Tensor values;     // the difference, then its mean over the learners
  at::Tensor payload, payloads;
  WorkPtr work;
  std::optional<rpc::Future<detail::ExchangeUpdate::Reply>> reply;
};

LowCommunication::~LowCommunication() = default;

LowCommunication::LowCommunication(std::shared_ptr<ProcessGroup> peers,
                                   std::shared_ptr<ProcessGroup> learner,
                                   std::vector<at::Tensor> parameters,
                                   const LowCommunicationOptions& options)
    : LowCommunication(detail::require_group(std::move(peers), "LowCommunication"), nullptr, "",
                       std::move(learner), std::move(parameters), options) {}

LowCommunication::LowCommunication(rpc::Workers& workers, const std::string& server,
                                   std::shared_ptr<ProcessGroup> learner,
                                   std::vector<at::Tensor> parameters,
                                   const LowCommunicationOptions& options)
    : LowCommunication(nullptr, &workers, server, std::move(learner), std::move(parameters),
                       options) {}

LowCommunication::LowCommunication(std::shared_ptr<ProcessGroup> peers, rpc::Workers* workers,
                                   std::string server, std::shared_ptr<ProcessGroup> learner,
                                   std::vector<at::Tensor> parameters,
                                   const LowCommunicationOptions& options)
    : peers_(std::move(peers)),
      workers_(workers),
      server_(std::move(server)),
      learner_(detail::require_group(std::move(learner), "LowCommunication")),
      parameters_(std::move(parameters)),
      options_(options) {
  check(options.period >= 1 && options.fragments >= 1 && options.fragments <= options.period,
        "LowCommunication: period {} and fragments {} must be at least 1, and a fragment needs a "
        "step of the period for itself",
        options.period, options.fragments);
  check(options.delay >= 0 && options.delay < options.period / options.fragments,
        "LowCommunication: delay {} must be at least 0 and below period / fragments, so that a "
        "fragment arrives before the next one leaves (fragments {}, period {})",
        options.delay, options.fragments, options.period);
  check(options.warmup_steps >= 0 && options.outer_lr > 0 && options.outer_momentum >= 0 &&
            options.outer_momentum < 1,
        "LowCommunication: warmup_steps {} must be at least 0, outer_lr {} above 0, and "
        "outer_momentum {} in [0, 1)",
        options.warmup_steps, options.outer_lr, options.outer_momentum);
  check(
      peers_ || options.warmup_steps == 0,
      "LowCommunication: warmup_steps {}: a server cannot average the learners' parameters; use 0",
      options.warmup_steps);
  check(options.wire == at::kFloat || options.wire == at::kBFloat16 || options.wire == at::kChar,
        "LowCommunication: values cannot be sent as {}, only as float32, bfloat16 or int8",
        c10::toString(options.wire));
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

  // The first rank of a learner exchanges whole fragments with a server.
  const std::int64_t ranks = peers_ ? learner_->world_size() : 1;
  const std::int64_t rank = peers_ ? learner_->rank() : 0;
  for (std::int64_t i = 0; i < options.fragments; ++i) {
    Fragment& fragment = fragments_.emplace_back();
    fragment.begin = elements * i / options.fragments;
    fragment.size = elements * (i + 1) / options.fragments - fragment.begin;
    fragment.part_size = round_up((fragment.size + ranks - 1) / ranks, kOuterBlock);
    fragment.part_begin = fragment.begin + std::min(fragment.size, fragment.part_size * rank);
    fragment.offset = options.period * (i + 1) / options.fragments % options.period;
  }

  const auto open = open_parameters(options_);
  anchor_ = read(0, elements, elements);
  momentum_ = at::zeros_like(anchor_);
  if (peers_) {
    broadcast(*peers_, anchor_, 0);
  } else {
    begin_at_server();
  }
  write(0, anchor_);
}

// Gets the server's parameters; if the server has none yet, first sends it those of this learner.
void LowCommunication::begin_at_server() {
  if (learner_->rank() == 0) {
    detail::OpenLearner::Request request{.elements = anchor_.numel()};
    for (const Fragment& fragment : fragments_) request.fragments.push_back(fragment.size);
    const auto open = [&] {
      return workers_
          ->call<detail::OpenLearner>(server_, request, {.deadline = options_.server_timeout})
          .get();
    };
    auto reply = open();
    if (!reply.anchor.defined()) {
      request.parameters = anchor_;
      reply = open();
    }
    anchor_ = reply.anchor;
    for (std::size_t i = 0; i < fragments_.size(); ++i) fragments_[i].version = reply.versions[i];
  }
  if (learner_->world_size() > 1) broadcast(*learner_, anchor_, 0);
}

at::Tensor LowCommunication::read(std::int64_t begin, std::int64_t size,
                                  std::int64_t padded) const {
  at::Tensor values = at::zeros({padded});
  std::int64_t at = 0;  // where the parameter begins
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

void LowCommunication::step(std::int64_t tokens) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  for (Fragment& fragment : fragments_) fragment.tokens += tokens;
  is_synchronised_ = false;
  if (num_steps_ <= options_.warmup_steps) return average_all();
  if (in_flight_ && in_flight_->due == num_steps_) arrive();
  const std::int64_t place = (num_steps_ - options_.warmup_steps) % options_.period;
  for (std::size_t i = 0; i < fragments_.size(); ++i)
    if (fragments_[i].offset == place) send(i, num_steps_ + options_.delay);
  if (in_flight_ && in_flight_->due == num_steps_) arrive();
  is_synchronised_ = peers_ && options_.fragments == 1 && options_.delay == 0 && place == 0;
}

void LowCommunication::finish() {
  const at::NoGradGuard no_grad;
  if (in_flight_) arrive();
}

// Returns the whole fragment: the parts of all ranks of the learner or, with a server, `part` of
// the learner's first rank.
at::Tensor LowCommunication::gather(const Fragment& fragment, const at::Tensor& part) const {
  if (!peers_) {
    if (learner_->world_size() > 1) broadcast(*learner_, part, 0);
    return part.slice(0, 0, fragment.size);
  }
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
  in_flight_ = std::make_unique<InFlight>();
  InFlight& round = *in_flight_;
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

void LowCommunication::encode(InFlight& round, Fragment& fragment) {
  if (options_.wire == at::kFloat) {
    round.payload = round.values;
  } else {
    if (fragment.error.defined()) round.values += fragment.error;
    round.payload = detail::encode_update(round.values, options_.wire);
    fragment.error = round.values - detail::decode_update(round.payload);
  }
  const auto bytes = static_cast<double>(round.payload.nbytes());
  if (!peers_) return send_to_server(round, fragment, bytes);
  const double learners = peers_->world_size();
  if (options_.wire != at::kChar) {
    bytes_sent_ += bytes * 2 * (learners - 1) / learners;
    round.work = all_reduce(*peers_, round.payload, ReduceOp::kMean, {.async_op = true});
    return;
  }
  round.payloads =
      at::empty({peers_->world_size() * round.payload.size(0), round.payload.size(1)}, at::kByte);
  bytes_sent_ += bytes * (learners - 1);
  round.work = all_gather_into_tensor(*peers_, round.payloads, round.payload, {.async_op = true});
}

void LowCommunication::send_to_server(InFlight& round, Fragment& fragment, double bytes) {
  const std::int64_t tokens = std::exchange(fragment.tokens, 0);
  if (learner_->rank() != 0) return;
  bytes_sent_ += bytes;
  round.reply = workers_->call<detail::ExchangeUpdate>(server_,
                                                       {.fragment = round.fragment,
                                                        .version = fragment.version,
                                                        .tokens = tokens,
                                                        .payload = round.payload},
                                                       {.deadline = options_.server_timeout});
}

// Converts the values that have arrived to the mean difference.
void LowCommunication::decode(InFlight& round) const {
  if (options_.wire == at::kBFloat16) round.values = round.payload.to(at::kFloat);
  if (options_.wire != at::kChar) return;
  round.values.zero_();
  for (const at::Tensor& payload : round.payloads.chunk(peers_->world_size()))
    round.values += detail::decode_update(payload);
  round.values /= peers_->world_size();
}

// Takes the outer step on the mean, or gets the result of the server's outer step.
void LowCommunication::finish_round(InFlight& round) {
  Fragment& fragment = fragments_[round.fragment];
  const std::int64_t end = fragment.begin + fragment.size;
  const at::Tensor anchor = anchor_.slice(0, fragment.begin, end);
  const auto began = std::chrono::steady_clock::now();
  if (peers_) {
    round.work->wait();
    seconds_waited_ += seconds_since(began);
    decode(round);
    detail::take_outer_step(anchor, momentum_.slice(0, fragment.begin, end),
                            gather(fragment, round.values), options_.outer_lr,
                            options_.outer_momentum);
    return;
  }
  if (round.reply) {
    const auto reply = round.reply->get();
    seconds_waited_ += seconds_since(began);
    fragment.version = reply.version;
    round.values.slice(0, 0, fragment.size).copy_(reply.anchor);
  }
  anchor.copy_(gather(fragment, round.values));
}

void LowCommunication::arrive() {
  InFlight round = std::move(*in_flight_);
  in_flight_.reset();
  finish_round(round);
  ++num_rounds_;

  const Fragment& fragment = fragments_[round.fragment];
  const std::int64_t end = fragment.begin + fragment.size;
  const auto open = open_parameters(options_);
  if (options_.delay == 0) return write(fragment.begin, anchor_.slice(0, fragment.begin, end));
  // Adds the change that this learner has made since the fragment was sent. Each rank adds it to
  // its own part only, because the ranks of a host may share the parameters.
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
          {"wire", optim::to_word(number_of(options_.wire))}};
}

optim::Metadata LowCommunication::state() const {
  optim::Metadata words = options_words();
  words[kOuterSteps] = optim::to_word(num_steps_);
  return words;
}

void LowCommunication::set_state(const optim::Metadata& state) {
  optim::require_same_words(state, options_words(), kOwner);
  num_steps_ = optim::count_in(state, kOuterSteps, kOwner);
  if (in_flight_ && in_flight_->work) in_flight_->work->wait();
  in_flight_.reset();
  for (Fragment& fragment : fragments_) fragment.error.reset();
}

}  // namespace paceline
