// etcd-endpoint.ts - parses the list of etcd endpoints, and makes calls to an endpoint. Each endpoint has its own
// connection.
//
// The gRPC services come from the package etcd3. weft does not use etcd3's connection pool for four reasons. The pool
// picks any host for a call. It has no deadline for a single attempt. When one call fails, it closes all connections of
// the host, even that of an open watch. It requests a user's token over a connection that ignores the gRPC options.

import { readdirSync, readFileSync, statSync } from 'node:fs'
import { isIP } from 'node:net'
import { join } from 'node:path'
import type * as grpc from '@grpc/grpc-js'
import type * as etcd3 from 'etcd3'
import { loadEtcdPool, loadGrpc } from '../../../base/assets.ts'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { codeOf } from './etcd-errors.ts'

const { Channel, connectivityState, credentials, setLogger, status } = loadGrpc()
const { Host } = loadEtcdPool()

export interface EndpointOptions {
  readonly endpoints: readonly string[]
  /**
   * The file name of the client's certificate; empty if not given. `keyFile` names the file of the client's key, and
   * `caFile` the file of the certificate authorities. `caFile` alone is enough for TLS.
   */
  readonly certFile: string
  readonly keyFile: string
  readonly caFile: string
}

export type Service = keyof typeof etcd3.Services

interface CallOptions {
  readonly metadata: grpc.Metadata
  /** The time at which the call fails if etcd has not answered, in ms since 1970. */
  readonly deadline: number
  readonly signal: AbortSignal
}

export interface Endpoint {
  readonly address: string
  /** Sends a gRPC request and returns its answer. Rejects with a grpc.ServiceError. */
  call(service: Service, method: string, payload: unknown, options: CallOptions): Promise<unknown>
  /** Returns the gRPC client with which the caller opens streams. */
  client(service: Service): grpc.Client
  /**
   * True after the server has refused weftd's keepalive pings. New connections to this server ping only every
   * SELDOM_MS, which every gRPC server accepts.
   */
  readonly isPingedSeldom: boolean
  /** Makes a new connection, which sends keepalive pings only every SELDOM_MS. */
  pingLess(): void
  close(): void
}

/**
 * The interval of keepalive pings in ms. KEEPALIVE_TIMEOUT_MS limits the wait for the answer, so a dead connection is
 * noticed after the sum of these two times. etcd closes connections that ping more often than every 5 s
 * (--grpc-keepalive-min-time).
 */
const KEEPALIVE_MS = 6_000
const KEEPALIVE_TIMEOUT_MS = 2_000
/**
 * The interval of keepalive pings, in ms, to a server that is not etcd itself, such as `etcd grpc-proxy`. By default
 * gRPC servers close connections that ping more often than every 5 min (grpc-go's keepalive.EnforcementPolicy).
 */
const SELDOM_MS = 310_000

const CHANNEL_OPTIONS: grpc.ChannelOptions = {
  'grpc.keepalive_time_ms': KEEPALIVE_MS,
  'grpc.keepalive_timeout_ms': KEEPALIVE_TIMEOUT_MS,
  'grpc.initial_reconnect_backoff_ms': 200,
  'grpc.max_reconnect_backoff_ms': 2_000,
  'grpc.use_local_subchannel_pool': 1, // a new channel must make a new connection
  'grpc.max_receive_message_length': -1, // a listing of 60,000 leases is larger than the default 4 MiB
  // grpc-js would use the proxy of `http_proxy` even for https and loopback addresses (its http_proxy.js). Go's client,
  // which flanneld uses, connects without a proxy.
  'grpc.enable_http_proxy': 0,
}

/**
 * The maximum duration of a connection attempt in ms; weftd then starts a new attempt. The kernel repeats a lost SYN
 * after 1, 2, 4 ... 64 s. So without this limit weftd would notice up to a minute late that a host is reachable again.
 */
const CONNECT_MS = 3_000

/**
 * For each endpoint, the function that receives gRPC's log lines. Only these lines report that a server complained
 * about too many keepalive pings.
 */
const listeners = new Set<(line: string) => void>()
/**
 * True if the operator enabled gRPC's log by an environment variable. Otherwise weftd hides gRPC's log lines, because
 * they lack klog's header and only repeat the errors of calls.
 */
const isAskedFor = process.env['GRPC_VERBOSITY'] !== undefined || process.env['GRPC_NODE_VERBOSITY'] !== undefined
const receive = (line?: unknown, ...more: readonly unknown[]): void => {
  for (const listen of listeners) listen(String(line))
  if (isAskedFor) console.error(line, ...more)
}
setLogger({ error: receive, info: receive, debug: receive })

export type Hosts = ReadonlyMap<string, boolean>

/**
 * Parses the endpoints of --etcd-endpoints. The scheme of an endpoint decides if it uses TLS. An endpoint without a
 * scheme uses TLS if certificates are given, as in etcd's client (client/v3/internal/endpoint/endpoint.go). A URL may
 * end with a slash. Throws WeftError USAGE if there is no endpoint, or for an endpoint that can never be reached.
 */
export function hostsOf({ endpoints, certFile, keyFile, caFile }: EndpointOptions): Hosts {
  const hasTls = caFile !== '' || (certFile !== '' && keyFile !== '')
  const hosts = new Map<string, boolean>()
  for (const endpoint of endpoints) {
    const [, scheme, host = ''] = /^(?:(https?):\/\/)?(.*?)\/*$/.exec(endpoint.trim()) ?? []
    if (host === '') continue
    const isTls = scheme === undefined ? hasTls : scheme === 'https'
    checkHost(endpoint.trim(), host, isTls)
    hosts.set(host, isTls)
  }
  if (hosts.size === 0) {
    throw new WeftError('USAGE', 'no etcd endpoint is given', {
      remedy: 'name an endpoint, such as --etcd-endpoints=http://127.0.0.1:2379',
    })
  }
  return hosts
}

/**
 * Throws WeftError USAGE if an endpoint is not a host and a port. The port may be missing only with TLS, because gRPC
 * then uses port 443.
 */
function checkHost(endpoint: string, host: string, isTls: boolean): void {
  if (host.startsWith('unix:')) return
  const [, name, port] = /^(\[[\da-f:.]+(?:%[\w.-]+)?\]|[^\s"'`/@:[\]]+)(?::(\d+))?$/i.exec(host) ?? []
  const shown = endpoint.replace(/\/+$/, '').replace(/[^/]*@/, '')
  const fail = (why: string, remedy: string): never => {
    throw new WeftError('USAGE', `--etcd-endpoints has ${shown}, ${why}`, { remedy })
  }
  if (name === undefined)
    fail(
      'which is not a host and a port',
      'write each endpoint as http://HOST:2379, without quotes; an IPv6 address in brackets',
    )
  else if (port === undefined && !isTls) fail('which has no port', `say ${shown}:2379`)
  else if (port !== undefined && !(Number(port) > 0 && Number(port) < 65_536))
    fail('whose port does not exist', 'ports are 1 to 65535; etcd listens for clients on 2379')
}

/**
 * Creates the endpoints without connecting. Throws WeftError USAGE if a certificate file cannot be read, or OpenSSL's
 * error if its content is invalid.
 */
export function openEndpoints(hosts: Hosts, options: EndpointOptions): Endpoint[] {
  const tls = tlsCredentials(options, [...hosts.values()].includes(true))
  return [...hosts].map(([address, hasTls]) => openEndpoint(address, hasTls ? tls : credentials.createInsecure()))
}

function openEndpoint(address: string, channelCredentials: grpc.ChannelCredentials): Endpoint {
  let isPingedSeldom = false
  const connect = () => {
    const pings = isPingedSeldom ? { 'grpc.keepalive_time_ms': SELDOM_MS } : {}
    const channel = new Channel(address, channelCredentials, { ...CHANNEL_OPTIONS, ...pings })
    return { channel, host: new Host(address, channelCredentials, { channelOverride: channel }) }
  }
  let connection = connect()
  /**
   * The time, in ms of performance.now(), when the current connection attempt began; undefined while the endpoint is
   * connected or idle.
   */
  let waitingSince: number | undefined
  let closed = false

  /** Makes a new connection for later calls. Open streams stay on the old connection. */
  function reconnect(): void {
    const { channel } = connection
    connection = connect()
    channel.close()
    waitingSince = undefined
  }

  function pingLess(): void {
    if (isPingedSeldom || closed) return
    isPingedSeldom = true
    reconnect()
  }
  /**
   * Recognises the log line in which gRPC reports that the server complained about too many pings (@grpc/grpc-js,
   * subchannel.js).
   */
  const listen = (line: string): void => {
    if (line.startsWith(`Connection to dns:${address} `) && line.includes('excess pings')) pingLess()
  }
  listeners.add(listen)

  function clientOf(service: Service): grpc.Client {
    const now = performance.now()
    const { channel } = connection
    if (channel.getConnectivityState(false) !== connectivityState.CONNECTING) waitingSince = undefined
    else if (waitingSince !== undefined && now - waitingSince > CONNECT_MS) reconnect()
    waitingSince ??= now
    return connection.host.getServiceClient(service)
  }

  function once(service: Service, method: string, payload: unknown, options: CallOptions): Promise<unknown> {
    const { metadata, deadline, signal } = options
    const client = clientOf(service)
    return new Promise((resolve, reject) => {
      type Method = (
        payload: unknown,
        metadata: grpc.Metadata,
        options: grpc.CallOptions,
        done: (error: grpc.ServiceError | null, answer: unknown) => void,
      ) => grpc.ClientUnaryCall
      const invoke = Reflect.get(client, method) as Method
      const call = invoke.call(client, payload, metadata, { deadline }, (error, answer) => {
        signal.removeEventListener('abort', onAbort)
        if (error) reject(error)
        else resolve(answer)
      })
      const onAbort = (): void => {
        call.cancel()
        reject(signal.reason as Error)
      }
      signal.addEventListener('abort', onAbort, { once: true })
    })
  }

  return {
    address,
    async call(service, method, payload, options) {
      options.signal.throwIfAborted()
      for (;;) {
        try {
          return await once(service, method, payload, options)
        } catch (error) {
          // A connection that pings only every SELDOM_MS would not be recognised as dead soon enough, so weftd makes a
          // new connection after a call that timed out.
          if (isPingedSeldom && !closed && codeOf(error) === status.DEADLINE_EXCEEDED) reconnect()
          // The call waited for a connection that reconnect() has closed, so it is sent again over the new connection.
          if (closed || !/Channel closed before call started/.test(messageOf(error))) throw error
        }
      }
    },
    client: clientOf,
    get isPingedSeldom() {
      return isPingedSeldom
    },
    pingLess,
    close() {
      closed = true
      listeners.delete(listen)
      connection.host.close()
      connection.channel.close()
    },
  }
}

function readCredential(flag: string, path: string): Buffer {
  try {
    return readFileSync(path)
  } catch (error) {
    throw new WeftError('USAGE', `cannot read ${path}: ${messageOf(error)}`, {
      remedy: `give --${flag} a readable PEM file`,
      cause: error,
    })
  }
}

/**
 * Returns the TLS credentials. `isUsed` is false if no endpoint uses TLS. The files are read even if no endpoint uses
 * TLS, so that weftd reports a mistyped file name.
 */
function tlsCredentials({ certFile, keyFile, caFile }: EndpointOptions, isUsed: boolean): grpc.ChannelCredentials {
  const root = caFile === '' ? null : readCredential('etcd-cafile', caFile)
  const [key, certificate] =
    certFile === '' || keyFile === ''
      ? [null, null]
      : [readCredential('etcd-keyfile', keyFile), readCredential('etcd-certfile', certFile)]
  return isUsed
    ? withoutAddressAsName(credentials.createSsl(root ?? systemRoots(), key, certificate))
    : credentials.createInsecure()
}

/** The member of a connector of @grpc/grpc-js (channel-credentials.js) that contains the options for tls.connect. */
interface TlsConnector {
  readonly connectionOptions?: { host?: string; servername?: string }
}

/**
 * Makes credentials that send no server name to an endpoint that is given as an IP address. TLS allows only host names
 * as server names (RFC 6066, section 3), and Node.js warns about an address (DEP0123). Node.js still checks the
 * certificate against the endpoint's address (`host` of tls.connect).
 */
function withoutAddressAsName(tls: grpc.ChannelCredentials): grpc.ChannelCredentials {
  const METHOD = '_createSecureConnector'
  const create = tls[METHOD].bind(tls)
  tls[METHOD] = (...how) => {
    const connector = create(...how)
    const { connectionOptions } = connector as TlsConnector
    const name = connectionOptions?.servername?.replace(/%.*$/, '') ?? ''
    if (connectionOptions?.host !== undefined && isIP(name) !== 0) connectionOptions.servername = ''
    return connector
  }
  return tls
}

/**
 * The files in which Linux distributions keep the trusted certificate authorities, in the order in which Go tries them
 * (crypto/x509/root_linux.go).
 */
const ROOT_FILES = [
  '/etc/ssl/certs/ca-certificates.crt',
  '/etc/pki/tls/certs/ca-bundle.crt',
  '/etc/ssl/ca-bundle.pem',
  '/etc/pki/tls/cacert.pem',
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem',
  '/etc/ssl/cert.pem',
]

/**
 * Returns the certificate authorities that this host trusts, including those of Go's variables SSL_CERT_FILE and
 * SSL_CERT_DIR. flanneld's client uses the same authorities if no CA is given. Returns null if the host trusts none;
 * then the authorities built into Node.js apply.
 */
function systemRoots(): Buffer | null {
  const { SSL_CERT_FILE: file = '', SSL_CERT_DIR: folders = '' } = process.env
  const readable = (path: string): string[] => {
    try {
      return [readFileSync(path, 'utf8')]
    } catch {
      return [] // the file is missing or is a folder
    }
  }
  const inFolder = (folder: string): string[] => {
    try {
      return readdirSync(folder).map((name) => join(folder, name))
    } catch {
      return []
    }
  }
  const found = [
    ...(file === '' ? ROOT_FILES : [file]).flatMap(readable).slice(0, 1),
    ...folders.split(':').filter(Boolean).flatMap(inFolder).flatMap(readable),
  ]
  return found.length === 0 ? null : Buffer.from(found.join('\n'))
}

/** Returns a text that changes when one of the certificate files is changed. */
export function certificateTimes({ certFile, keyFile, caFile }: EndpointOptions): string {
  return [certFile, keyFile, caFile]
    .map((path) => (path === '' ? undefined : statSync(path, { throwIfNoEntry: false })))
    .map((info) => `${info?.mtimeMs} ${info?.ino}`)
    .join()
}
