import com.hivemq.configuration.service.InternalConfigurations;
import com.hivemq.embedded.EmbeddedExtension;
import com.hivemq.embedded.EmbeddedHiveMQ;
import com.hivemq.embedded.internal.EmbeddedExtensionBuilderImpl;
import com.hivemq.embedded.internal.EmbeddedHiveMQBuilderImpl;
import com.hivemq.extension.sdk.api.ExtensionMain;
import com.hivemq.extension.sdk.api.auth.Authenticator;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.auth.parameter.AuthenticatorProviderInput;
import com.hivemq.extension.sdk.api.auth.parameter.SimpleAuthInput;
import com.hivemq.extension.sdk.api.auth.parameter.SimpleAuthOutput;
import com.hivemq.extension.sdk.api.packets.connect.ConnectPacket;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartOutput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopOutput;
import com.hivemq.extension.sdk.api.services.Services;
import com.hivemq.extension.sdk.api.services.auth.provider.AuthenticatorProvider;
import java.io.File;
import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

/**
 * Starts HiveMQ Community Edition, the MQTT broker of the local stack, in a folder with conf/config.xml and data.
 *
 * If conf/logins.properties exists (user=password, one per line), clients must log in. Janino compiles this file at
 * every start, so that no JDK is needed; it supports neither lambdas nor static interface methods.
 */
public class MqttBroker {
    public static void main(String[] arguments) throws Exception {
        // The default is 50, but the connector has thousands of messages in flight. Each poll for new messages reserves
        // this many packet identifiers until it ends. When one poll reserved all 65,535, a second one found none, a
        // third one was never made, and the subscriber received nothing more. This limit leaves room for several polls.
        InternalConfigurations.MAX_INFLIGHT_WINDOW_SIZE_MESSAGES = 8192;
        // The default is 64 files of each kind, which suits large fleets but makes the start slow.
        InternalConfigurations.PERSISTENCE_BUCKET_COUNT.set(4);
        InternalConfigurations.PAYLOAD_PERSISTENCE_BUCKET_COUNT.set(4);
        // A stop waits for this long even if nothing is left to write. The default is 2 s.
        InternalConfigurations.PERSISTENCE_SHUTDOWN_GRACE_PERIOD_MSEC.set(100);
        File folder = new File(arguments[0]);
        File settings = new File(folder, "conf");
        final EmbeddedHiveMQ broker = new EmbeddedHiveMQBuilderImpl()
            .withConfigurationFolder(settings.toPath())
            .withDataFolder(new File(folder, "data").toPath())
            .withExtensionsFolder(settings.toPath())
            .withEmbeddedExtension(
                new EmbeddedExtensionBuilderImpl()
                    .withId("logins").withName("Logins").withVersion("1").withAuthor("LocalStreamBuffer")
                    .withExtensionMain(new Logins(new File(settings, "logins.properties"))).build())
            .build();
        try {
            broker.start().join();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                broker.stop().join();
            }
        });
        Thread.currentThread().join();
    }
}

/** Authenticates clients. Without such a class, the broker accepts no clients. */
class Logins implements ExtensionMain, AuthenticatorProvider, SimpleAuthenticator {
    private final boolean isOpen;
    private final Properties passwords = new Properties();

    Logins(File file) throws Exception {
        isOpen = !file.exists();
        if (!isOpen) {
            FileInputStream lines = new FileInputStream(file);
            passwords.load(lines);
            lines.close();
        }
    }

    public void extensionStart(ExtensionStartInput input, ExtensionStartOutput output) {
        Services.securityRegistry().setAuthenticatorProvider(this);
    }

    public void extensionStop(ExtensionStopInput input, ExtensionStopOutput output) {
    }

    public Authenticator getAuthenticator(AuthenticatorProviderInput input) {
        return this;
    }

    public void onConnect(SimpleAuthInput input, SimpleAuthOutput output) {
        ConnectPacket packet = input.getConnectPacket();
        String user = (String) packet.getUserName().orElse("");
        ByteBuffer password = (ByteBuffer) packet.getPassword().orElse(ByteBuffer.allocate(0));
        String given = StandardCharsets.UTF_8.decode(password).toString();
        if (isOpen || given.equals(passwords.getProperty(user))) {
            output.authenticateSuccessfully();
        } else {
            output.failAuthentication();
        }
    }
}
