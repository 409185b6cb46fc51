// mailbox.h - what the lanes tell JavaScript of handshakes: messages that came, sessions that want one, or have come
// of one, peers that moved.
//
// It has few places, and those of each origin are its own, of which each host has one for each kind of message, and the
// answers that were asked of one session no more than a few: whoever floods takes no place from another peer, none from
// an answer that was asked of another, and costs JavaScript no more than it takes out.
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
  /// The longest message of a handshake.
  static constexpr size_t kMessageBytes = 148;
  static constexpr size_t kPlaces = 256;
  /// Of answers of one kind that one session asked for: its peer may forge them, from any address.
  static constexpr size_t kPlacesOfSession = 4;

  struct Letter {
    SocketAddress from;
    std::array<uint8_t, kMessageBytes> bytes;
    uint32_t size;
    uint32_t session;  ///< that asked for it; 0: none did
  };
  /// Whose a message is. Addresses may be forged; that an answer was asked for is seen by a number of 32 bits, which
  /// was sent to that peer alone.
  enum class Origin : uint8_t { kAsked, kPeer, kPeerWithoutSession, kOther };
  static constexpr size_t kOrigins = 4;
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

  /// False when there is no place for it. `session` asked for it; 0: none did.
  bool post(const SocketAddress& from, std::span<const uint8_t> message, Origin origin, uint32_t session = 0) {
    const std::lock_guard lock(lock_);
    std::vector<Letter>& letters = letters_[static_cast<size_t>(origin)];
    if (letters.size() >= kPlaces) return false;  // what a flood costs most of the time
    size_t alike = 0;
    for (const Letter& each : letters) {
      if (each.bytes[0] != message[0] || each.session != session) continue;
      if (each.from.address() == from.address()) return false;
      alike++;
    }
    if (session != 0 && alike >= kPlacesOfSession) return false;
    const size_t size = std::min(message.size(), kMessageBytes);
    Letter& letter = letters.emplace_back(Letter{from, {}, static_cast<uint32_t>(size), session});
    std::memcpy(letter.bytes.data(), message.data(), size);
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

  /// What was not taken yet, but for handshakes that are wanted: sessions say so again.
  void save(SecretWriter& out) {
    const std::lock_guard lock(lock_);
    for (const std::vector<Letter>& letters : letters_) {
      out.put_all(letters, [&](const Letter& each) { out.put(each); });
    }
    out.put_all(confirmed_, [&](uint32_t each) { out.put(each); });
    out.put_all(moved_, [&](const Moved& each) { out.put(each); });
  }
  void load(SecretReader& in) {
    const std::lock_guard lock(lock_);
    for (std::vector<Letter>& letters : letters_) {
      letters.clear();
      in.get_all([&] {
        const auto letter = in.get<Letter>();
        if (letter.size == 0 || letter.size > kMessageBytes || letters.size() == kPlaces) return in.refuse();
        letters.push_back(letter);
      });
    }
    in.get_all([&] { confirmed_.push_back(in.get<uint32_t>()); });
    in.get_all([&] { moved_.push_back(in.get<Moved>()); });
    ring_();
  }

  /// Takes it all, what others sent last, and of that at most so many messages: the rest of those is thrown away, since
  /// who floods asks for nothing less. By JavaScript's thread.
  Mail take(size_t most_of_others) {
    const std::lock_guard lock(lock_);
    Mail mail{{}, std::move(wanted_), std::move(confirmed_), std::move(moved_)};
    std::vector<Letter>& others = letters_[static_cast<size_t>(Origin::kOther)];
    others.resize(std::min(most_of_others, others.size()));
    for (std::vector<Letter>& letters : letters_) {
      mail.letters.insert(mail.letters.end(), letters.begin(), letters.end());
      letters.clear();
    }
    wanted_.clear();
    confirmed_.clear();
    moved_.clear();
    return mail;
  }

 private:
  std::function<void()> ring_;
  std::mutex lock_;
  std::array<std::vector<Letter>, kOrigins> letters_;
  std::vector<uint32_t> wanted_, confirmed_;
  std::vector<Moved> moved_;
};

}  // namespace weft
