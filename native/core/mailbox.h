// mailbox.h - the data that loop threads pass to JavaScript for WireGuard: handshake messages, sessions that need a
// handshake, sessions whose keys the peer has confirmed, and peers that sent from a new address.
//
// Messages are classified by origin, and the number of waiting messages is limited per origin, so that a flood from one
// origin uses no space of another. Within an origin, each sender address may have one waiting message of each kind, and
// each session a few answers, so that a flood of answers to one session leaves space for answers to other sessions.
// JavaScript decides how many messages it takes out.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "address.h"
#include "secret_bytes.h"

namespace weft {

class Mailbox {
 public:
  /// The length of the longest handshake message (an initiation), in bytes. A longer message is not a handshake message
  /// of WireGuard.
  static constexpr size_t kMessageBytes = 148;
  static constexpr size_t kPlaces = 256;
  /// The maximum number of waiting answers of one kind to one session. The limit is needed because the session's peer
  /// could send forged answers from any number of addresses.
  static constexpr size_t kPlacesOfSession = 4;

  struct ControlMessage {
    SocketAddress from;
    std::array<uint8_t, kMessageBytes> bytes;
    uint32_t size;
    uint32_t session;  ///< the session whose handshake the message answers; 0 if it answers none
  };
  /// The origin of a message. kAsked: an answer to this host's last handshake message to a peer. The answer names a
  /// 32-bit index that this host sent only to that peer, so it is hard to forge. The other origins depend on the
  /// sender's address, which may be forged. kPeer: an initiation from a peer's address. kPeerWithoutSession: a data
  /// message without a known session, from a peer's address. kOther: an initiation from any other address.
  enum class Origin : uint8_t { kAsked, kPeer, kPeerWithoutSession, kOther };
  static constexpr size_t kOrigins = 4;
  /// A session, and the address from which its peer now sends. When JavaScript reads this report, `session` may already
  /// belong to another peer.
  struct Moved {
    uint32_t session;
    SocketAddress to;
  };
  struct Mail {
    std::vector<ControlMessage> control_messages;
    std::vector<uint32_t> wanted, confirmed;
    std::vector<Moved> moved;
  };

  /// Any thread calls `ring` when the mailbox has something for JavaScript. The mailbox calls `ring` only once until
  /// JavaScript takes the mail. Otherwise a peer that changes its address with each packet would cause a call for each.
  explicit Mailbox(std::function<void()> ring) : ring_(std::move(ring)) {}

  /// Adds a handshake message. `session` is the session whose handshake the message answers, or 0. Returns false if the
  /// message was discarded because of a limit.
  bool post(const SocketAddress& from, std::span<const uint8_t> message, Origin origin, uint32_t session = 0) {
    const std::lock_guard lock(lock_);
    std::vector<ControlMessage>& messages = messages_[static_cast<size_t>(origin)];
    if (messages.size() >= kPlaces) return false;  // checked first, because it ends most calls in a flood
    size_t alike = 0;
    for (const ControlMessage& each : messages) {
      if (each.bytes[0] != message[0] || each.session != session) continue;
      if (each.from.address() == from.address()) return false;
      alike++;
    }
    if (session != 0 && alike >= kPlacesOfSession) return false;
    const size_t size = std::min(message.size(), kMessageBytes);
    ControlMessage& posted = messages.emplace_back(ControlMessage{from, {}, static_cast<uint32_t>(size), session});
    std::memcpy(posted.bytes.data(), message.data(), size);
    ring();
    return true;
  }
  void want(uint32_t session) {
    const std::lock_guard lock(lock_);
    wanted_.push_back(session);
    ring();
  }
  void confirm(uint32_t session) {
    const std::lock_guard lock(lock_);
    confirmed_.push_back(session);
    ring();
  }
  void moved(uint32_t session, const SocketAddress& to) {
    const std::lock_guard lock(lock_);
    std::erase_if(moved_, [&](const Moved& each) { return each.session == session; });
    moved_.push_back({session, to});
    ring();
  }

  /// Saves everything that JavaScript has not taken, for the next engine. Requests for handshakes are not saved,
  /// because sessions repeat their requests.
  void save(SecretWriter& out) {
    const std::lock_guard lock(lock_);
    for (const std::vector<ControlMessage>& messages : messages_) {
      out.put_all(messages, [&](const ControlMessage& each) { out.put(each); });
    }
    out.put_all(confirmed_, [&](uint32_t each) { out.put(each); });
    out.put_all(moved_, [&](const Moved& each) { out.put(each); });
  }
  void load(SecretReader& in) {
    const std::lock_guard lock(lock_);
    for (std::vector<ControlMessage>& messages : messages_) {
      messages.clear();
      in.get_all([&] {
        const auto loaded = in.get<ControlMessage>();
        if (loaded.size == 0 || loaded.size > kMessageBytes || messages.size() == kPlaces) return in.refuse();
        messages.push_back(loaded);
      });
    }
    in.get_all([&] { confirmed_.push_back(in.get<uint32_t>()); });
    in.get_all([&] { moved_.push_back(in.get<Moved>()); });
    ring();
  }

  /// Takes all reports out of the mailbox, with at most `most_of_others` messages of unknown senders (kOther). Discards
  /// all other messages of unknown senders, because in a flood they are not worth the time. Called by JavaScript's
  /// thread.
  Mail take(size_t most_of_others) {
    const std::lock_guard lock(lock_);
    Mail mail{{}, std::move(wanted_), std::move(confirmed_), std::move(moved_)};
    std::vector<ControlMessage>& others = messages_[static_cast<size_t>(Origin::kOther)];
    others.resize(std::min(most_of_others, others.size()));
    for (std::vector<ControlMessage>& messages : messages_) {
      mail.control_messages.insert(mail.control_messages.end(), messages.begin(), messages.end());
      messages.clear();
    }
    wanted_.clear();
    confirmed_.clear();
    moved_.clear();
    has_rung_ = false;
    return mail;
  }

 private:
  void ring() {
    if (!std::exchange(has_rung_, true)) ring_();
  }

  std::function<void()> ring_;
  std::mutex lock_;
  bool has_rung_ = false;  // true if `ring_` was called after the last take()
  std::array<std::vector<ControlMessage>, kOrigins> messages_;
  std::vector<uint32_t> wanted_, confirmed_;
  std::vector<Moved> moved_;
};

}  // namespace weft
