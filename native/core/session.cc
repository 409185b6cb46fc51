// session.cc - implements WireGuard's rules for timers and key pairs.
#include "session.h"

#include <algorithm>
#include <utility>

namespace weft {

namespace {

using Lock = std::lock_guard<std::mutex>;

/// Reads a time in ms of the clock that all processes of a host share (CLOCK_BOOTTIME). Marks the input as bad if the
/// time is in the future.
int64_t load_time(SecretReader& in, int64_t now_ms) {
  const auto at = in.get<int64_t>();
  if (at < 0 || at > now_ms) in.refuse();
  return in.is_good() ? at : 0;
}

}  // namespace

void Session::set_keys(uint64_t number, const SessionKeys& keys, int64_t now_ms) {
  const Lock lock(lock_);
  // Erase an older pair of keys with the same index, because an index repeats after 4096 handshakes
  // (src/path/backends/wireguard/indices.ts).
  for (PairPointer* pair : {&previous_, &current_, &next_}) {
    if (*pair && (*pair)->keys.own_index == keys.own_index) pair->reset();
  }
  auto pair = std::make_unique<Pair>(number, keys, now_ms);
  if (keys.is_initiator) {
    replace_current(std::move(pair));
    if (next_) next_->is_outdated = true;
    // The response to this host's initiation has arrived, so from now on ignore further messages with the same index.
    uint32_t& response = expected_[static_cast<size_t>(Expected::kResponse)];
    if (response == keys.own_index) response = 0;
  } else {
    next_ = std::move(pair);
  }
  requested_ms_ = 0;
  unanswered_ms_ = 0;
}

void Session::replace_current(PairPointer pair) {
  if (!previous_ || (current_ && current_->used_ms >= previous_->used_ms)) previous_ = std::move(current_);
  current_ = std::move(pair);
}

void Session::wipe() {
  previous_.reset();
  current_.reset();
  next_.reset();
}

void Session::forget() {
  const Lock lock(lock_);
  wipe();
  forgotten_ += staged_.size();
  staged_.clear();
  to_ = {};
  any_port_ = false;
  expected_ = {};
  requested_ms_ = passed_ms_ = unanswered_ms_ = unreplied_ms_ = 0;
}

void Session::send_to(const SocketAddress& to, bool any_port) {
  const Lock lock(lock_);
  to_ = to;
  any_port_ = any_port;
}

void Session::expect(Expected answer, uint32_t own_index) {
  const Lock lock(lock_);
  expected_[static_cast<size_t>(answer)] = own_index;
}

bool Session::expects(Expected answer, uint32_t own_index) const {
  const Lock lock(lock_);
  return own_index != 0 && expected_[static_cast<size_t>(answer)] == own_index;
}

bool Session::is_empty() const {
  const Lock lock(lock_);
  return !previous_ && !current_ && !next_ && staged_.empty() && expected_ == decltype(expected_){};
}

void Session::save_pair(const Pair& pair, SecretWriter& out) {
  out.put(static_cast<uint8_t>(pair.keys.is_initiator));
  out.put(pair.keys.own_index);
  out.put(pair.keys.peer_index);
  for (const Key* key : {&pair.keys.send, &pair.keys.receive}) out.put_bytes({key->data(), Key::kBytes});
  out.put(pair.made_ms);
  out.put(pair.next_counter);
  pair.received.save(out);
  out.put(pair.used_ms);
  out.put(static_cast<uint8_t>(pair.is_outdated));
}

Session::PairPointer Session::load_pair(SecretReader& in, uint64_t number, int64_t now_ms) {
  SessionKeys keys;
  keys.is_initiator = in.get_flag();
  keys.own_index = in.get<uint32_t>();
  keys.peer_index = in.get<uint32_t>();
  for (Key* key : {&keys.send, &keys.receive}) {
    const std::span<const uint8_t> bytes = in.get_bytes(Key::kBytes);
    if (!bytes.empty()) *key = Key(bytes.data());
  }
  auto pair = std::make_unique<Pair>(number, keys, load_time(in, now_ms));
  pair->next_counter = in.get<uint64_t>();
  pair->received.load(in);
  pair->used_ms = load_time(in, now_ms);
  pair->is_outdated = in.get_flag();
  return pair;
}

void Session::save(SecretWriter& out) const {
  const Lock lock(lock_);
  for (const int64_t at : {passed_ms_, unanswered_ms_, unreplied_ms_}) out.put(at);
  out.put(expected_);
  for (const PairPointer* pair : {&previous_, &current_, &next_}) {
    out.put(static_cast<uint8_t>(*pair != nullptr));
    if (*pair) save_pair(**pair, out);
  }
  out.put_all(staged_, [&](const Staged& staged) {
    out.put(staged.since_ms);
    out.put(static_cast<uint32_t>(staged.datagram.size()));
    out.put_bytes(staged.datagram);
  });
}

void Session::load(SecretReader& in, const std::function<uint64_t()>& next_number,
                   const std::function<bool(size_t, StagedBytes&)>& take_share, uint32_t slot, int64_t now_ms) {
  const Lock lock(lock_);
  for (int64_t* at : {&passed_ms_, &unanswered_ms_, &unreplied_ms_}) *at = load_time(in, now_ms);
  expected_ = in.get<decltype(expected_)>();
  for (PairPointer* pair : {&previous_, &current_, &next_}) {
    *pair = in.get_flag() ? load_pair(in, next_number(), now_ms) : nullptr;
  }
  staged_.clear();
  in.get_all([&] {
    Staged staged{{}, load_time(in, now_ms), slot};
    const auto size = in.get<uint32_t>();
    const std::span<const uint8_t> bytes = in.get_bytes(size);
    if (size < Limits::kAroundBytes || staged_.size() == Limits::kMaxStaged) return in.refuse();
    if (!in.is_good() || !take_share(size, staged.share)) return;
    staged.datagram.assign(bytes.begin(), bytes.end());
    staged_.push_back(std::move(staged));
  });
  requested_ms_ = 0;
}

SocketAddress Session::to() const {
  const Lock lock(lock_);
  return to_;
}

bool Session::request_handshake(int64_t now_ms) {
  if (requested_ms_ != 0 && now_ms - requested_ms_ < Limits::kRequestEveryMs) return false;
  requested_ms_ = now_ms;
  return true;
}

void Session::sent(bool is_data, int64_t now_ms) {
  passed_ms_ = now_ms;
  unreplied_ms_ = 0;
  if (is_data && unanswered_ms_ == 0) unanswered_ms_ = now_ms;
}

Session::Grant Session::begin_seal(Aead& sealing, bool is_data, int64_t now_ms) {
  const Lock lock(lock_);
  Grant grant;
  if (!current_ || !current_->is_usable(now_ms)) {
    grant.wants_handshake = request_handshake(now_ms);
    return grant;
  }
  Pair& pair = *current_;
  grant.counter = pair.next_counter++;
  grant.peer_index = pair.keys.peer_index;
  grant.is_granted = true;
  if (sealing.key_number() != pair.number) sealing.use(pair.number, pair.keys.send);
  const bool is_old = now_ms - pair.made_ms >= Limits::kRekeyAfterMs && pair.keys.is_initiator;
  if (is_old || grant.counter >= Limits::kRekeyAfterMessages) grant.wants_handshake = request_handshake(now_ms);
  sent(is_data, now_ms);
  return grant;
}

bool Session::stage(Staged staged) {
  const Lock lock(lock_);
  if (staged_.size() >= Limits::kMaxStaged) return false;
  staged_.push_back(std::move(staged));
  return true;
}

bool Session::may_seal(int64_t now_ms) const {
  const Lock lock(lock_);
  return current_ && current_->is_usable(now_ms);
}

std::vector<Staged> Session::take_staged() {
  const Lock lock(lock_);
  return std::exchange(staged_, {});
}

template <typename Is>
Session::Pair* Session::find(Is is) const {
  for (const PairPointer* pair : {&current_, &previous_, &next_}) {
    if (*pair && is(**pair)) return pair->get();
  }
  return nullptr;
}

std::optional<Counter> Session::begin_open(Aead& opening, uint32_t own_index, uint64_t counter, int64_t now_ms) const {
  const Lock lock(lock_);
  const Pair* pair = find([&](const Pair& each) { return each.keys.own_index == own_index; });
  if (!pair || !pair->is_usable(now_ms)) return k_rx_drop_no_session;
  if (counter >= Limits::kRejectAfterMessages) return k_rx_drop_replay;
  if (opening.key_number() != pair->number) opening.use(pair->number, pair->keys.receive);
  return {};
}

Session::Accepted Session::accept(uint64_t number, uint64_t counter, bool is_data, const SocketAddress& from,
                                  int64_t now_ms) {
  const Lock lock(lock_);
  Accepted accepted;
  Pair* pair = find([&](const Pair& each) { return each.number == number; });
  if (!pair) {
    accepted.reason = k_rx_drop_no_session;
    return accepted;
  }
  if (!pair->received.accept(counter)) {
    accepted.reason = k_rx_drop_replay;
    return accepted;
  }
  pair->used_ms = now_ms;
  if (pair == next_.get()) {
    if (pair->is_outdated && current_)
      previous_ = std::move(next_);
    else
      replace_current(std::move(next_));
    accepted.is_confirmed = true;
  }
  accepted.has_moved = !any_port_ && !(to_ == from);
  if (accepted.has_moved) to_ = from;
  passed_ms_ = now_ms;
  unanswered_ms_ = 0;
  if (is_data && unreplied_ms_ == 0) unreplied_ms_ = now_ms;
  const bool is_old = now_ms - pair->made_ms >= Limits::kRefreshAfterMs;
  if (is_old && pair == current_.get() && pair->keys.is_initiator) accepted.wants_handshake = request_handshake(now_ms);
  return accepted;
}

Session::Due Session::look(int64_t keepalive_ms, int64_t now_ms) {
  const Lock lock(lock_);
  Due due;
  const auto waits =
      std::ranges::find_if(staged_, [&](const Staged& each) { return now_ms - each.since_ms < Limits::kStagedMs; });
  due.expired = static_cast<size_t>(waits - staged_.begin()) + std::exchange(forgotten_, 0);
  staged_.erase(staged_.begin(), waits);
  for (PairPointer* pair : {&previous_, &current_, &next_}) {
    if (*pair && now_ms - (*pair)->made_ms >= Limits::kRejectAfterMs) pair->reset();
  }
  const bool is_usable = current_ && current_->is_usable(now_ms);
  if (!staged_.empty()) due.wants_handshake = request_handshake(now_ms);
  if (unanswered_ms_ != 0 && now_ms - unanswered_ms_ >= Limits::kSilenceMs) {
    unanswered_ms_ = 0;
    due.wants_handshake = request_handshake(now_ms) || due.wants_handshake;
  }
  const bool is_quiet = keepalive_ms > 0 && now_ms - passed_ms_ >= keepalive_ms;
  const bool is_reply_due = unreplied_ms_ != 0 && now_ms - unreplied_ms_ >= Limits::kKeepaliveMs;
  due.keepalive = is_usable && (is_quiet || is_reply_due);
  if (is_quiet && !is_usable && to_.address()) due.wants_handshake = request_handshake(now_ms) || due.wants_handshake;
  return due;
}

}  // namespace weft
