// encapsulation.ts - the encapsulations: how a datagram contains an inner packet.
//
// The code here serves the dgram engine, which supports only flannel's udp. The native engine has all encapsulations,
// under the same names, in native/encap/all.h.

export type EncapsulationName = 'udp' | 'vxlan' | 'wireguard'

export interface Encapsulation {
  /** The number of bytes that are added before and after each packet. */
  readonly headerBytes: number
  readonly trailerBytes: number
  /** Returns the datagram for a packet. It is the packet itself if nothing is added. */
  readonly seal: (packet: Buffer) => Buffer
  /** Returns the packet in a datagram, without a copy; undefined if there is none. */
  readonly open: (datagram: Buffer) => Buffer | undefined
}

export const ENCAPSULATIONS = {
  /** flannel's udp: a datagram contains exactly one packet (pkg/backend/udp/proxy_amd64.c). */
  udp: { headerBytes: 0, trailerBytes: 0, seal: (packet) => packet, open: (datagram) => datagram },
} satisfies Readonly<Partial<Record<EncapsulationName, Encapsulation>>>
