// mailbox.h - what the lanes tell JavaScript of handshakes: messages that came, sessions that want one, or have come
// of one, peers that moved.
//
// It has few places. Messages from hosts that are peers have places of their own, and each host one of each kind:
// whoever floods takes no place from another peer, and costs JavaScript no more than it takes out.
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

namespace weft {

class Mailbox {
 public:
  /// The longest message of a handshake.
  static constexpr size_t kMessageBytes = 148;
  static constexpr size_t kPlaces = 256;

  struct Letter {
    SocketAddress from;
    std::array<uint8_t, kMessageBytes> bytes;
    size_t size;
  };
  /// A session by its number, and where its peer sends from now, if it is that.
  struct Moved {
    uint32_t session;
    SocketAddress to;
  };
  struct Mail {
    std::vector<Letter> letters;
    std::vector<uint32_t> wanted, confirmed;
    std::vector<Moved> moved;
  };

  /// `ring` is called, by whichever thread, when there is mail.
  explicit Mailbox(std::function<void()> ring) : ring_(std::move(ring)) {}

  /// False when there is no place for it.
  bool post(const SocketAddress& from, std::span<const uint8_t> message, bool is_from_peer) {
    const std::lock_guard lock(lock_);
    std::vector<Letter>& letters = is_from_peer ? from_peers_ : from_others_;
    if (letters.size() >= kPlaces) return false;  // what a flood costs most of the time
    const bool has_one = std::ranges::any_of(letters, [&](const Letter& each) {
      return each.bytes[0] == message[0] && each.from.address() == from.address();
    });
    if (has_one) return false;
    Letter& letter = letters.emplace_back(Letter{from, {}, message.size()});
    std::memcpy(letter.bytes.data(), message.data(), std::min(message.size(), kMessageBytes));
    ring_();
    return true;
  }
  void want(uint32_t session) {
    const std::lock_guard lock(lock_);
    wanted_.push_back(session);
    ring_();
  }
  void confirm(uint32_t session) {
    const std::lock_guard lock(lock_);
    confirmed_.push_back(session);
    ring_();
  }
  void moved(uint32_t session, const SocketAddress& to) {
    const std::lock_guard lock(lock_);
    std::erase_if(moved_, [&](const Moved& each) { return each.session == session; });
    moved_.push_back({session, to});
    ring_();
  }

  /// Takes it all, what came from peers first, and of others' messages at most so many: the rest of those is thrown
  /// away, since who floods asks for nothing less. By JavaScript's thread.
  Mail take(size_t most_of_others) {
    const std::lock_guard lock(lock_);
    Mail mail{std::move(from_peers_), std::move(wanted_), std::move(confirmed_), std::move(moved_)};
    const auto end = from_others_.begin() + static_cast<ptrdiff_t>(std::min(most_of_others, from_others_.size()));
    mail.letters.insert(mail.letters.end(), from_others_.begin(), end);
    from_others_.clear();
    from_peers_.clear();
    wanted_.clear();
    confirmed_.clear();
    moved_.clear();
    return mail;
  }

 private:
  std::function<void()> ring_;
  std::mutex lock_;
  std::vector<Letter> from_peers_, from_others_;
  std::vector<uint32_t> wanted_, confirmed_;
  std::vector<Moved> moved_;
};

}  // namespace weft
