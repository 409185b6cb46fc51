// access.ts - the API server's address and credentials: from a pod's service account, a kubeconfig, or a URL.
//
// weftd reads the files again for each request, because tokens, certificates and authorities rotate. This costs little,
// because requests are rare.

import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { messageOf, WeftError } from '../../base/errors.ts'
import { Secret, withoutUser } from '../../base/secret.ts'

/** The folder of a pod's credentials (Kubernetes, "Accessing the API from within a Pod"). */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount'

export interface Access {
  /** The URL of the API server, without a trailing slash and without user and password. */
  readonly server: string
  /**
   * The value of the HTTP header Authorization: a bearer token, or a user and a password (basic authentication) from
   * the URL or from the kubeconfig.
   */
  readonly authorization?: Secret
  /**
   * The certificate authorities that may sign the API server's certificate, in PEM. Defaults to the authorities built
   * into Node.js.
   */
  readonly ca?: string
  readonly cert?: string
  readonly key?: Secret
  /** The name that the API server's certificate must have, if the name differs from the host of the URL. */
  readonly serverName?: string
  /** True if weft does not check the API server's certificate (insecure-skip-tls-verify). */
  readonly isInsecure?: boolean
}

export interface AccessOptions {
  /**
   * `apiUrl` is the value of the flag --kube-api-url, and `kubeconfig` that of --kubeconfig-file. A value is empty if
   * its flag is not given.
   */
  readonly apiUrl: Secret
  readonly kubeconfig: string
  readonly environment: NodeJS.ProcessEnv
  /** The folder in which kubelet puts the pod's token and certificate authority. Defaults to SERVICE_ACCOUNT. */
  readonly serviceAccount?: string
}

/** Reads the API server's address and the credentials from their files. Throws WeftError STORE if they are invalid. */
export async function readAccess(options: AccessOptions): Promise<Access> {
  const { apiUrl, kubeconfig } = options
  // A kubeconfig takes precedence over a URL, and a URL over the service account, as in client-go's
  // BuildConfigFromFlags.
  if (kubeconfig !== '') return readKubeconfig(kubeconfig, apiUrl.reveal())
  return apiUrl.isEmpty ? readServiceAccount(options) : serverOf(apiUrl.reveal(), '--kube-api-url')
}

const refuse = (message: string, remedy: string): WeftError =>
  new WeftError('STORE', `fail to create kubernetes config: ${message}`, { remedy }) // flannel's words

const bearer = (token: string): Secret => new Secret(`Bearer ${token}`)
/** Returns the value of the HTTP header Authorization for a user and a password (basic authentication, RFC 7617). */
const basic = (user: string, password: string): Secret =>
  new Secret(`Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`)

function serverOf(text: string, where: string, hasTls = false): Pick<Access, 'server' | 'authorization'> {
  // If the API server's URL has no scheme, weftd uses https with a kubeconfig that has TLS settings, and http
  // otherwise, as client-go does (rest/url_utils.go, defaultServerUrlFor).
  const full = text.includes('://') ? text : hasTls ? `https://${text}` : `http://${text}`
  if (!URL.canParse(full) || !/^https?:/i.test(full))
    throw refuse(`${where} is ${JSON.stringify(withoutUser(text))}`, 'give it a URL such as https://10.0.0.1:6443')
  const url = new URL(full)
  const [user, password] = [url.username, url.password].map(decoded) as [string, string]
  url.username = url.password = ''
  const server = url.href.replace(/\/$/, '')
  if (user === '' && password === '') return { server }
  // weftd sends a user and password in the URL as basic authentication, like Go's client (net/http, Request.URL).
  return { server, authorization: basic(user, password) }
}

/** Decodes percent escapes in a URL's user or password. Returns the text unchanged if an escape is invalid. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

async function readPart(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw refuse(messageOf(error), 'put the file there, or name another kubeconfig with --kubeconfig-file')
  }
}

async function readServiceAccount({ environment, serviceAccount = SERVICE_ACCOUNT }: AccessOptions): Promise<Access> {
  const { KUBERNETES_SERVICE_HOST: host = '', KUBERNETES_SERVICE_PORT: port = '' } = environment
  if (host === '' || port === '') {
    throw refuse(
      'KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set',
      'run weftd in a pod, or name a kubeconfig with --kubeconfig-file',
    )
  }
  // Read the service account's two files in sequence, so that the error names the same file each time if both files are
  // missing.
  const token = await readPart(resolve(serviceAccount, 'token'))
  const ca = await readPart(resolve(serviceAccount, 'ca.crt'))
  return {
    server: `https://${host.includes(':') ? `[${host}]` : host}:${port}`,
    authorization: bearer(token.trim()),
    ca,
  }
}

/**
 * The members of a kubeconfig that weft reads (client-go, tools/clientcmd/api/v1/types.go). The file is untrusted: each
 * member may have any type.
 */
interface Kubeconfig {
  readonly 'current-context'?: unknown
  readonly contexts?: readonly Named<'context'>[]
  readonly clusters?: readonly Named<'cluster'>[]
  readonly users?: readonly Named<'user'>[]
}
type Named<Kind extends string> = { readonly name?: unknown } & { readonly [kind in Kind]?: Section | null }
type Section = Readonly<Record<string, unknown>>

const REFUSED: Readonly<Record<string, string>> = {
  exec: 'weft starts no program for a credential; give the user a token, a tokenFile or a certificate',
  'auth-provider': 'give the user a token, a tokenFile or a certificate',
  'proxy-url': 'give the cluster an address that this host reaches without a proxy',
}

async function readKubeconfig(path: string, apiUrl: string): Promise<Access> {
  const { parse, YAMLParseError } = await import('yaml') // only a kubeconfig needs it
  const text = await readPart(path)
  let config: Kubeconfig
  try {
    config = (parse(text, { logLevel: 'error' }) ?? {}) as Kubeconfig
  } catch (error) {
    // The message of the YAML parser quotes lines of the kubeconfig, which may contain a token. So weft's message has
    // only line and column.
    const [{ line, col }] = (error instanceof YAMLParseError && error.linePos) || [{ line: 0, col: 0 }]
    const where = line === 0 ? '' : ` at line ${line}, column ${col}`
    throw refuse(`${path}: it is not valid YAML${where}`, 'correct the kubeconfig')
  }
  const find = <Kind extends string>(
    list: readonly Named<Kind>[] | undefined,
    kind: Kind,
    name: unknown,
  ): Section | undefined => {
    const found = Array.isArray(list) ? list.find((each: Named<Kind> | null) => each?.name === name) : undefined
    return found?.[kind] ?? undefined
  }
  const current = config['current-context']
  const context = find(config.contexts, 'context', current)
  if (!context)
    throw refuse(
      `${path}: there is no context ${JSON.stringify(current ?? '')}`,
      'set current-context to an existing context',
    )
  const cluster = find(config.clusters, 'cluster', context['cluster'])
  const user = find(config.users, 'user', context['user']) ?? {}
  for (const [name, remedy] of Object.entries(REFUSED))
    if (user[name] || cluster?.[name]) throw refuse(`${path} has ${JSON.stringify(name)}`, remedy)
  const server = apiUrl === '' ? cluster?.['server'] : apiUrl
  if (typeof server !== 'string' || server === '')
    throw refuse(`${path}: the cluster of the context has no server`, 'correct the kubeconfig, or give --kube-api-url')

  /**
   * Returns the certificate, key or authority called `name` of a kubeconfig's section. The member `NAME-data` has the
   * content in base64; the member `NAME` has the path of a file with the content, relative to the kubeconfig.
   */
  const material = async (section: Section | undefined, name: string): Promise<string | undefined> => {
    const inline = section?.[`${name}-data`]
    if (typeof inline === 'string' && inline !== '') return Buffer.from(inline, 'base64').toString()
    const file = section?.[name]
    return typeof file === 'string' && file !== '' ? readPart(resolve(dirname(path), file)) : undefined
  }
  const ca = await material(cluster, 'certificate-authority')
  const cert = await material(user, 'client-certificate')
  const key = await material(user, 'client-key')
  const { token: given, tokenFile, username, password } = user
  // If a kubeconfig has a token and a token file, the file takes precedence as in client-go, because a program renews
  // the token in the file.
  const token =
    typeof tokenFile === 'string' && tokenFile !== ''
      ? (await readPart(resolve(dirname(path), tokenFile))).trim()
      : given
  const [name, word] = [username, password].map((each) => (typeof each === 'string' ? each : '')) as [string, string]
  const authorization =
    typeof token === 'string' && token !== ''
      ? bearer(token)
      : name !== '' || word !== ''
        ? basic(name, word)
        : undefined
  const serverName = cluster?.['tls-server-name']
  const isInsecure = cluster?.['insecure-skip-tls-verify'] === true
  const hasTls = ca !== undefined || cert !== undefined || isInsecure
  return {
    ...serverOf(server, apiUrl === '' ? `the server in ${path}` : '--kube-api-url', hasTls),
    ...(authorization && { authorization }),
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key: new Secret(key) }),
    ...(typeof serverName === 'string' && serverName !== '' ? { serverName } : {}),
    ...(isInsecure ? { isInsecure } : {}),
  }
}
