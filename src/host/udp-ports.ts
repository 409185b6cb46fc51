// udp-ports.ts - checks whether a UDP port of this host is free, and finds the process that uses the port.

import { createSocket } from 'node:dgram'
import { readdir, readFile, readlink } from 'node:fs/promises'
import { parseAddress, type Family } from '../net/address.ts'

interface UdpSocket {
  /** The local address of the socket as text; `*` if the socket receives at every address. */
  readonly address: string
  /**
   * The inode number of the socket, which identifies the socket among the open files of a process. A socket of the
   * kernel, such as that of a vxlan device, is open in no process.
   */
  readonly inode: number
}

/**
 * Checks if a UDP port is free: binds a socket to the port without SO_REUSEADDR and SO_REUSEPORT, and closes the
 * socket. Resolves with undefined if the port is free, else with the kernel's error code, such as EADDRINUSE.
 */
export function tryUdpPort(family: Family, address: string, port: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = createSocket(family === 'ipv4' ? { type: 'udp4' } : { type: 'udp6', ipv6Only: true })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      socket.close()
      resolve(error.code ?? error.message)
    })
    socket.bind({ address, port, exclusive: true }, () => socket.close(() => resolve(undefined)))
  })
}

/**
 * Lists the sockets that prevent binding a socket to this address and port. Returns an empty list if procfs cannot be
 * read.
 */
export async function socketsAt(family: Family, address: string, port: number): Promise<readonly UdpSocket[]> {
  const tables = family === 'ipv4' ? (['udp', 'udp6'] as const) : (['udp6'] as const)
  const texts = await Promise.all(tables.map((table) => readFile(`/proc/self/net/${table}`, 'utf8').catch(() => '')))
  return texts
    .flatMap((text, at) => socketsIn(text, tables[at] === 'udp' ? 'ipv4' : 'ipv6', port))
    .filter((socket) => {
      if (isAny(address) || socket.address === '*') return true
      return socket.address === plain(address)
    })
}

const ANY: ReadonlySet<string> = new Set(['0.0.0.0', '::'])
const isAny = (address: string): boolean => ANY.has(address)
/** Returns a canonical form of an address, so that different spellings of the same address compare equal. */
const plain = (address: string): string => String(parseAddress(address))

/**
 * Parses /proc/net/udp or udp6, and returns the sockets with this port. The kernel prints addresses in hexadecimal
 * digits, in 32-bit words of the host's byte order.
 */
export function socketsIn(table: string, family: Family, port: number): UdpSocket[] {
  const digits = port.toString(16).toUpperCase().padStart(4, '0')
  return table.split('\n').flatMap((line) => {
    const [, local = '', , , , , , , , inode = ''] = line.trim().split(/\s+/)
    const [address = '', at] = local.split(':')
    if (at !== digits) return []
    const bytes = (address.match(/.{8}/g) ?? []).flatMap((word) => (word.match(/../g) ?? []).toReversed())
    const isZero = bytes.every((byte) => byte === '00')
    const value = family === 'ipv4' ? Number(`0x${bytes.join('')}`) : BigInt(`0x${bytes.join('')}`)
    return [{ address: isZero ? '*' : String(value), inode: Number(inode) }]
  })
}

/**
 * Lists the inode numbers of the sockets that a process and its children have open; undefined if weft lacks the
 * permission to see them.
 */
export async function socketsOf(pid: number): Promise<ReadonlySet<number> | undefined> {
  const own = await openSockets(pid)
  if (!own) return undefined
  const children = await Promise.all(
    (await processes()).map(async (each) => ((await parentOf(each)) === pid ? await openSockets(each) : undefined)),
  )
  return new Set([...own, ...children.flatMap((inodes) => [...(inodes ?? [])])])
}

/**
 * Returns the name of the first process that has one of these sockets open, such as `socat (pid 12)`; undefined if weft
 * finds no such process.
 */
export async function ownerOfSockets(inodes: ReadonlySet<number>): Promise<string | undefined> {
  for (const pid of await processes()) {
    const open = await openSockets(pid)
    if (!open || ![...inodes].some((inode) => open.has(inode))) continue
    const name = await readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')
    return `${name.trim() || 'a process'} (pid ${pid})`
  }
  return undefined
}

const processes = async (): Promise<readonly number[]> =>
  (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name)).map(Number)

/**
 * Reads the id of a process's parent from /proc/PID/stat. The process name in that file may contain spaces and
 * parentheses.
 */
async function parentOf(pid: number): Promise<number | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')
  const [, parent] = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return parent === undefined ? undefined : Number(parent)
}

async function openSockets(pid: number): Promise<ReadonlySet<number> | undefined> {
  const folder = `/proc/${pid}/fd`
  const fds = await readdir(folder).catch(() => undefined)
  if (!fds) return undefined
  const links = await Promise.all(fds.map((fd) => readlink(`${folder}/${fd}`).catch(() => '')))
  return new Set(links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? []).map(Number))
}
