// wireguard.h - WireGuard's data messages: 16 bytes of header, the sealed packet, 16 bytes of tag.
//
// The format follows the white paper (section 5.4.6) and works with kernels, wireguard-go and others. Packets are not
// padded: all implementations accept that, and packet lengths stay those that path MTU discovery found. The session
// (core/session.h) has the keys, and decides when they may be used.
//
// Handshake messages go to JavaScript (core/mailbox.h). Only two kinds are passed on: initiations with a correct mac1,
// whose senders know this host's public key (section 5.4.4), and answers that name the index of the last message.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "../core/encapsulation.h"
#include "../core/sessions.h"
#include "../crypto/aead.h"
#include "../crypto/mac.h"

namespace weft {

class Wireguard {
 public:
  static constexpr std::string_view kName = "wireguard";
  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kTrailerBytes = Aead::kTagBytes;
  static constexpr bool kRoutes = false;
  static constexpr bool kCopiesEcn = true;
  /// No timer of the protocol is shorter than five seconds.
  static constexpr int kTickMs = 500;

  /// The offsets in `own.encap`; numbers are little-endian. The fields are: the secret that is mixed into indices, the
  /// keepalive interval in milliseconds (0: none), the key of mac1 (derived from this host's public key), and the key
  /// that permutes indices.
  static constexpr size_t kSecret = 0, kKeepalive = 4, kMacKey = 8, kIndexKey = 40;

  static IndexCode indices_of(const OwnEnd& own) {
    return {load_le32(&own.encap[kSecret]), std::span(own.encap).subspan<kIndexKey, IndexCode::kKeyBytes>()};
  }

  /// The caller has checked that Aead::create() succeeds. If the MAC is unavailable, JavaScript gets all initiations.
  Wireguard(const OwnEnd& own, Sessions& sessions)
      : sessions_(&sessions),
        keepalive_ms_(load_le32(&own.encap[kKeepalive])),
        sealing_(Aead::create(Aead::Way::kSeal)),
        opening_(Aead::create(Aead::Way::kOpen)),
        mac_(Mac::create(std::span(own.encap).subspan<kMacKey, Mac::kKeyBytes>())) {}

  /// Must be called before JavaScript sends a message to a peer.
  static void sends(Sessions& sessions, std::span<const uint8_t> message) {
    const Type type = type_of(message);
    if (type != kInitiation && type != kResponse) return;
    const uint32_t index = load_le32(&message[4]);
    Session* session = sessions.of(sessions.number_of_index(index));
    if (!session) return;
    if (type == kInitiation) session->expect(Session::Expected::kResponse, index);
    session->expect(Session::Expected::kCookie, index);
  }

  void begin_turn(int64_t now_ms) { now_ms_ = now_ms; }

  Sealed seal(const Endpoint& peer, const Packet&, std::span<uint8_t> bytes, std::span<uint8_t>) {
    const uint32_t number = Sessions::number_of(peer.encap.data());
    Session* session = sessions_->of(number);
    if (!session) return Sealed::drop(k_tx_drop_no_session);
    const Session::Grant grant = begin_seal(number, *session, true);
    if (grant.is_granted) return finish(grant, bytes) ? Sealed::datagram() : Sealed::drop(k_tx_drop_no_session);
    StagedBytes share;
    if (!sessions_->take_staged_bytes(bytes.size() + kTrailerBytes, share)) return Sealed::drop(k_tx_drop_no_session);
    std::vector<uint8_t> copy;
    copy.reserve(bytes.size() + kTrailerBytes);
    copy.assign(bytes.begin(), bytes.end());
    copy.resize(bytes.size() + kTrailerBytes);
    const bool kept = session->stage({std::move(copy), now_ms_, peer.slot, std::move(share)});
    // If keys arrived since begin_seal(), the waiting packets were already sent, so this packet needs another trigger.
    if (kept && session->may_seal(now_ms_)) sessions_->make_ready(number);
    return kept ? Sealed::kept() : Sealed::drop(k_tx_drop_no_session);
  }

  Opened open(Message& message) {
    const std::span<uint8_t> datagram = message.take();
    if (datagram.size() < kLeastBytes) return Opened::drop(k_rx_drop_malformed);
    const Type type = type_of(datagram);
    if (type == kNone) return Opened::drop(k_rx_drop_malformed);
    // A handshake also shows the peer's current address.
    if (type != kData && message.is_from_inside) return Opened::drop(k_rx_drop_handshake);
    if (type != kData) return Opened::control_message(datagram);
    const uint32_t index = load_le32(&datagram[4]), number = sessions_->number_of_index(index);
    const uint64_t counter = load_le64(&datagram[8]);
    Session* session = sessions_->of(number);
    std::optional<Counter> refused = k_rx_drop_no_session;
    if (session) refused = session->begin_open(*opening_, index, counter, now_ms_);
    if (!refused) opened_ms_ = now_ms_;
    // A peer that uses keys which this host lost, for example by a restart, needs a new handshake.
    if (refused == k_rx_drop_no_session) return Opened::drop(*refused, datagram.first(kHeaderBytes));
    if (refused) return Opened::drop(*refused);
    const std::span<uint8_t> packet = datagram.subspan(kHeaderBytes, datagram.size() - kHeaderBytes - kTrailerBytes);
    if (!opening_->open(counter, packet)) return Opened::drop(k_rx_drop_not_authentic);
    // A peer must not roam to an address inside the network, because datagrams to it would enter the tunnel again.
    const SocketAddress from = message.is_from_inside ? session->to() : *message.sender;
    const Session::Accepted accepted = session->accept(index, counter, !packet.empty(), from, now_ms_);
    if (accepted.reason) return Opened::drop(*accepted.reason);
    if (accepted.wants_handshake) sessions_->mailbox().want(number);
    // On confirmation JavaScript sets the peer's address to that of its handshake. The sender of this packet is newer.
    if (accepted.is_confirmed) {
      sessions_->mailbox().confirm(number);
      sessions_->make_ready(number);
    }
    if (accepted.has_moved) sessions_->mailbox().moved(number, *message.sender);
    return packet.empty() ? Opened::nothing() : Opened::packet(packet, number);
  }

  /// Hands a message to JavaScript, or returns why it is dropped. Data without a session is passed on only from peers;
  /// from other senders it would take room from handshakes.
  std::optional<Counter> deliver(const SocketAddress& from, std::span<const uint8_t> message, bool is_from_peer) {
    using enum Mailbox::Origin;
    const auto post = [&](Mailbox::Origin origin, uint32_t session = 0) -> std::optional<Counter> {
      if (sessions_->mailbox().post(from, message, origin, session)) return {};
      return k_rx_drop_handshake;
    };
    const uint32_t type = message[0];
    if (type == kData) return is_from_peer ? post(kPeerWithoutSession) : k_rx_drop_handshake;
    if (type != kInitiation) {
      const uint32_t index = load_le32(&message[type == kResponse ? 8 : 4]), number = sessions_->number_of_index(index);
      const Session* session = sessions_->of(number);
      const auto answer = type == kResponse ? Session::Expected::kResponse : Session::Expected::kCookie;
      // Only a host that has seen the last message can name its index, so a MAC would prove nothing more.
      return session && session->expects(answer, index) ? post(kAsked, number) : k_rx_drop_handshake;
    }
    if (!sessions_->may_look(is_from_peer, now_ms_)) return k_rx_drop_handshake;
    const size_t before = message.size() - 2 * Mac::kBytes;
    if (mac_ && !mac_->is_of(message.first(before), message.subspan(before).first<Mac::kBytes>()))
      return k_rx_drop_wrong_key;
    return post(is_from_peer ? kPeer : kOther);
  }

  /// Wipes the keys that this lane has not used for a while. The session may have wiped them already.
  void rest(int64_t now_ms) {
    if (now_ms - sealed_ms_ >= kRestMs && sealing_->key_number() != 0) sealing_->forget();
    if (now_ms - opened_ms_ >= kRestMs && opening_->key_number() != 0) opening_->forget();
  }

  template <typename Out>
  bool tick(int64_t now_ms, Out& out) {
    begin_turn(now_ms);
    for (const uint32_t number : sessions_->take_ready()) send_waiting(number, out);
    if (now_ms < next_look_ms_) return false;
    next_look_ms_ = now_ms + kTickMs;
    if (!sessions_->begin_look(now_ms, kTickMs)) return true;
    sessions_->for_each([&](uint32_t number, Session& session) {
      const Session::Due due = session.look(keepalive_ms_, now_ms);
      if (due.wants_handshake) sessions_->mailbox().want(number);
      if (due.keepalive) send_keepalive(number, session, out);
      if (due.expired > 0) out.drop(k_tx_drop_no_session, due.expired);
    });
    return true;
  }

 private:
  /// The first byte of a message; the three bytes behind it are zero. kNone is not a message type.
  enum Type : uint32_t { kNone, kInitiation, kResponse, kCookieReply, kData };
  static constexpr size_t kLeastBytes = kHeaderBytes + kTrailerBytes;
  /// Keys of this lane that were not used for this time are wiped. It equals WireGuard's passive keepalive interval, so
  /// the keys of a session in use stay.
  static constexpr int64_t kRestMs = SessionLimits::kKeepaliveMs;

  static Type type_of(std::span<const uint8_t> message) {
    constexpr size_t kBytes[] = {0, 148, 92, 64};
    const uint32_t type = message.size() < kLeastBytes ? kNone : load_le32(message.data());
    if (type == kData) return kData;
    return type < kData && message.size() == kBytes[type] ? static_cast<Type>(type) : kNone;
  }

  /// Takes a counter, and requests a handshake if the session needs one.
  Session::Grant begin_seal(uint32_t number, Session& session, bool is_data) {
    const Session::Grant grant = session.begin_seal(*sealing_, is_data, now_ms_);
    if (grant.is_granted) sealed_ms_ = now_ms_;
    if (grant.wants_handshake) sessions_->mailbox().want(number);
    return grant;
  }

  /// `bytes` begins with room for the header, and has room for the tag behind it.
  bool finish(const Session::Grant& grant, std::span<uint8_t> bytes) {
    store_le32(&bytes[0], kData);
    store_le32(&bytes[4], grant.peer_index);
    store_le64(&bytes[8], grant.counter);
    return sealing_->seal(grant.counter, bytes.subspan(kHeaderBytes));
  }

  /// Sends the packets that waited for keys. If none waited, sends a keepalive, which tells a responder that its keys
  /// may be used.
  template <typename Out>
  void send_waiting(uint32_t number, Out& out) {
    Session* session = sessions_->of(number);
    if (!session) return;
    std::vector<Staged> waiting = session->take_staged();
    if (waiting.empty()) return send_keepalive(number, *session, out);
    for (Staged& staged : waiting) {
      const std::span<uint8_t> whole(staged.datagram), bytes = whole.first(whole.size() - kTrailerBytes);
      const Session::Grant grant = begin_seal(number, *session, true);
      if (!grant.is_granted || !finish(grant, bytes)) {
        out.drop(k_tx_drop_no_session, 1);
      } else {
        out.send(session->to(), whole, bytes.size() - kHeaderBytes, staged.slot);
      }
    }
  }

  template <typename Out>
  void send_keepalive(uint32_t number, Session& session, Out& out) {
    uint8_t datagram[kHeaderBytes + kTrailerBytes];
    const Session::Grant grant = begin_seal(number, session, false);
    if (grant.is_granted && finish(grant, {datagram, kHeaderBytes})) out.send(session.to(), datagram, 0, 0);
  }

  Sessions* sessions_;
  int64_t keepalive_ms_;
  std::unique_ptr<Aead> sealing_, opening_;
  std::unique_ptr<Mac> mac_;               // null if this process has no BLAKE2s
  int64_t now_ms_ = 0;                     // when the turn began
  int64_t sealed_ms_ = 0, opened_ms_ = 0;  // when a key was last used
  int64_t next_look_ms_ = 0;
};
static_assert(Encapsulation<Wireguard> && HasSessions<Wireguard>);

}  // namespace weft
