#include "paceline/engine/rpc/protocol/session.h"

#include <utility>

namespace paceline::rpc {

using Kind = CallerSession::Step::Kind;

CallNumber CallerSession::begin(Effect effect, Scope scope, Steps& steps) {
  const CallNumber number = ++last_call_;
  calls_.emplace(number, Call{effect, scope, is_ready_, is_ready_});
  if (is_ready_) steps.push_back({Kind::kRequest, number});
  return number;
}

void CallerSession::end(std::map<CallNumber, Call>::iterator call, CallEnd end, Steps& steps) {
  if (end != CallEnd::kReplied) steps.push_back({Kind::kEnded, call->first, end});
  if (call->second.is_sent && is_ready_) steps.push_back({Kind::kAcknowledge, call->first});
  calls_.erase(call);
}

void CallerSession::give_up(CallNumber number, Steps& steps) {
  const auto call = calls_.find(number);
  if (call == calls_.end()) return;
  end(call, call->second.may_have_run ? CallEnd::kUnknown : CallEnd::kNotExecuted, steps);
}

void CallerSession::give_up_all(CallNumber last, Steps& steps) {
  while (!calls_.empty() && calls_.begin()->first <= last) give_up(calls_.begin()->first, steps);
}

void CallerSession::connected(Steps& steps) {
  ++connection_;
  steps.push_back({session_ == 0 ? Kind::kOpen : Kind::kResume});
}

void CallerSession::disconnected() { is_ready_ = false; }

void CallerSession::send_waiting(Steps& steps) {
  is_ready_ = true;
  for (auto& [number, call] : calls_) {
    if (std::exchange(call.is_sent, true)) continue;
    call.may_have_run = true;
    steps.push_back({Kind::kRequest, number});
  }
}

void CallerSession::opened(SessionNumber session, Steps& steps) {
  session_ = session;
  send_waiting(steps);
}

void CallerSession::resumed(const std::vector<KnownCall>& known, Steps& steps) {
  is_ready_ = true;
  for (const auto& [number, state] : known) {
    const auto call = calls_.find(number);
    if (call == calls_.end()) {  // given up since kResume was sent
      steps.push_back({Kind::kAcknowledge, number});
      continue;
    }
    if (state == CallState::kRunning) continue;
    const bool is_repeatable = call->second.effect == Effect::kRepeatable;
    if (state == CallState::kNotReceived || is_repeatable) {
      call->second.is_sent = false;  // so that it is sent again below
    } else if (call->second.effect == Effect::kAtMostOnce) {
      end(call, CallEnd::kUnknown, steps);
    }
  }
  send_waiting(steps);
}

void CallerSession::refused(SessionNumber session, Steps& steps) {
  if (session != session_) return;
  session_ = 0;
  is_ready_ = false;
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    const auto& [effect, scope, is_sent, may_have_run] = call->second;
    const bool may_be_sent_again =
        scope == Scope::kAnySession && (!is_sent || effect == Effect::kRepeatable);
    if (may_be_sent_again) {
      call->second.is_sent = false;
    } else {
      end(call, may_have_run ? CallEnd::kUnknown : CallEnd::kNotExecuted, steps);
    }
  }
  steps.push_back({Kind::kOpen});
}

bool CallerSession::replied(CallNumber number, Steps& steps) {
  const auto call = calls_.find(number);
  if (call == calls_.end()) return false;
  end(call, CallEnd::kReplied, steps);
  return true;
}

std::vector<CallNumber> CallerSession::sent() const {
  std::vector<CallNumber> numbers;
  for (const auto& [number, call] : calls_) {
    if (call.is_sent) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace paceline::rpc
